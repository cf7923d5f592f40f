#include "server/response.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

namespace sx::server {

using Json = nlohmann::ordered_json;

namespace {

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }
std::string event(const Json& json) { return "data: " + text_of(json) + "\n\n"; }
Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

const char* finish_reason(FinishReason reason) {
  return reason == FinishReason::kEnd || reason == FinishReason::kStop ? "stop" : "length";
}

Json error_json(const ApiError& e) {
  return {{"error", {{"message", e.what()}, {"type", e.type}, {"param", or_null(e.param)}, {"code", or_null(e.code)}}}};
}

// Usage, times (llama.cpp's names) and what speculation did (vLLM's names).
void add_numbers(Json& body, const GenerateResult& r, int prompt_tokens) {
  const Timings& t = r.timings;
  body["usage"] = {{"prompt_tokens", prompt_tokens},
                   {"completion_tokens", t.generated_tokens},
                   {"total_tokens", prompt_tokens + t.generated_tokens},
                   {"prompt_tokens_details", {{"cached_tokens", t.cached_tokens}}}};
  body["metrics"] = Json::parse(spec_metrics_json(r.spec));
  body["timings"] = {{"cache_n", t.cached_tokens}, {"prompt_n", t.prompt_tokens}, {"prompt_ms", t.prompt_ms},
                     {"predicted_n", t.generated_tokens}, {"predicted_ms", t.decode_ms}};
}

std::string random_id() {
  thread_local std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}", device(), device(), device());
}

Json head(const char* object, const std::string& id, int64_t created, const std::string& model) {
  return {{"id", id}, {"object", object}, {"created", created}, {"model", model}};
}

}  // namespace

std::string error_body(const ApiError& error) { return text_of(error_json(error)); }

Answer::Answer(bool chat, std::string model, int prompt_tokens)
    : chat_(chat), model_(std::move(model)), id_((chat ? "chatcmpl-" : "cmpl-") + random_id()), prompt_tokens_(prompt_tokens) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  created_ = std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

std::string Answer::whole(const GenerateResult& result) const {
  Json body = head(chat_ ? "chat.completion" : "text_completion", id_, created_, model_);
  Json choice{{"index", 0}};
  if (chat_) choice["message"] = {{"role", "assistant"}, {"content", result.text}};
  else choice["text"] = result.text;
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = finish_reason(result.reason);
  body["choices"] = Json::array({choice});
  add_numbers(body, result, prompt_tokens_);
  return text_of(body);
}

namespace {

Json chunk(bool chat, const std::string& id, int64_t created, const std::string& model, Json content, Json reason) {
  Json body = head(chat ? "chat.completion.chunk" : "text_completion", id, created, model);
  Json choice{{"index", 0}};
  choice[chat ? "delta" : "text"] = std::move(content);
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = std::move(reason);
  body["choices"] = Json::array({choice});
  return body;
}

}  // namespace

std::string Answer::first_event() const {
  if (!chat_) return {};
  return event(chunk(true, id_, created_, model_, {{"role", "assistant"}, {"content", ""}}, nullptr));
}

std::string Answer::text_event(std::string_view text) const {
  const Json content = chat_ ? Json{{"content", text}} : Json(text);
  return event(chunk(chat_, id_, created_, model_, content, nullptr));
}

std::string Answer::last_event(const GenerateResult& result) const {
  const Json content = chat_ ? Json::object() : Json("");
  return event(chunk(chat_, id_, created_, model_, content, finish_reason(result.reason)));
}

std::string Answer::usage_event(const GenerateResult& result) const {
  Json body = head(chat_ ? "chat.completion.chunk" : "text_completion", id_, created_, model_);
  body["choices"] = Json::array();
  add_numbers(body, result, prompt_tokens_);
  return event(body);
}

std::string Answer::error_event(const ApiError& error) { return event(error_json(error)); }

}  // namespace sx::server
