// Ollama's /api/chat and /api/generate: requests, and answers as lines of JSON.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "server/protocol_parts.h"
#include "server/tool_schema.h"

namespace sx::server {
namespace {

using PartKind = AnswerPart::Kind;

std::string now_text() {
  const auto now = std::chrono::system_clock::now();
  const auto part = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() % 1000000;
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(now)), part);
}

// 'options': sampling, with Ollama's defaults. How the model is loaded was decided when the server was started.
void read_ollama_options(FieldReader& body, Json& chat) {
  chat["temperature"] = 0.8, chat["top_k"] = 40, chat["top_p"] = 0.9;
  const Json* given = body.get_object("options");
  if (!given) return;
  FieldReader options(*given, "options");
  for (const char* name : {"temperature", "top_k", "top_p", "stop", "typical_p", "tfs_z", "mirostat"})
    options.pass(chat, name);
  options.pass_extensions(chat);
  if (const Json* most = options.get("num_predict")) {
    const std::optional<int64_t> number = whole_number(*most);
    if (!number || *number < -2) throw options.wrong("num_predict", "must be a whole number from -2");
    chat["max_tokens"] = std::max<int64_t>(*number, -1);
  }
  options.ignore({"num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "use_mmap", "use_mlock",
                  "numa", "low_vram", "f16_kv", "vocab_only", "mirostat_tau", "mirostat_eta", "penalize_newline"});
  options.done();
}

void read_common_fields(FieldReader& body, Json& chat) {
  body.pass(chat, "model");
  chat["stream"] = body.flag("stream", true);
  if (const Json* format = body.get("format"); format && !is_text(format, "")) {
    if (is_text(format, "json")) chat["response_format"] = {{"type", "json_object"}};
    else if (format->is_object()) chat["json_schema"] = *format;
    else throw body.wrong("format", "must be 'json' or a JSON schema");
  }
  if (const Json* think = body.get("think")) {
    if (think->is_boolean()) set_thinking(chat["chat_template_kwargs"] = Json::object(), think->get<bool>());
    else if (think->is_string()) chat["reasoning_effort"] = *think;
    else throw body.wrong("think", "must be true, false, low, medium or high");
  }
  read_ollama_options(body, chat);
  body.ignore({"keep_alive"});  // the model stays
}

Json read_ollama_message(const Json& one, const std::string& where) {
  FieldReader message(one, where);
  Json out{{"role", message.text("role")}, {"content", message.text("content", "")}};
  if (!is_off(message.get("images"))) throw message.wrong("images", "are not supported");
  if (const Json* thinking = message.get("thinking"); thinking && !is_text(thinking, ""))
    out["reasoning_content"] = *thinking;
  message.pass(out, "tool_calls");
  message.pass(out, "tool_call_id");
  message.pass(out, "tool_name", "name");
  message.done();
  return out;
}

CompletionRequest as_ollama(CompletionRequest request, Protocol protocol) {
  request.protocol = protocol;
  request.protocol_facts = std::make_shared<ProtocolFacts>();
  return request;
}

class OllamaWriter final : public PartWriter {
 public:
  OllamaWriter(const CompletionRequest& request, const AnswerFacts& facts)
      : PartWriter(request, facts), chat_(request.protocol == Protocol::kOllamaChat) {}

  std::string error(const ApiError& error) override { return line({{"error", error.what()}}); }
  std::string_view ping() const override { return " "; }  // before a line of JSON it means nothing
  std::string_view stream_type() const override { return "application/x-ndjson"; }

 private:
  std::string body(const std::vector<AnswerPart>& parts, const ChoiceEnd& end) override {
    Json said = empty();
    for (const AnswerPart& part : parts) {
      if (part.kind == PartKind::kCall) add_call(said, part.call);
      else add_text(said, part);
    }
    return text_of(last(std::move(said), end));
  }

  std::string start() override { return {}; }

  std::string tell(const AnswerPart& part) override {
    if (part.kind == PartKind::kArguments) return call_.arguments += part.text, std::string();
    std::string events = tell_call();
    if (part.kind == PartKind::kCall) {
      call_ = part.call;
      return events;
    }
    Json said = empty();
    add_text(said, part);
    return events + line(head(std::move(said), false));
  }

  std::string stop(const ChoiceEnd& end) override {
    std::string events = tell_call();
    return events += line(last(empty(), end));
  }

  static std::string line(const Json& json) { return text_of(json) + "\n"; }

  // Calls come whole here.
  std::string tell_call() {
    if (call_.name.empty()) return {};
    Json said = empty();
    add_call(said, std::exchange(call_, {}));
    return line(head(std::move(said), false));
  }

  Json empty() const { return chat_ ? Json{{"role", "assistant"}, {"content", ""}} : Json{{"response", ""}}; }
  void add_text(Json& said, const AnswerPart& part) const {
    const char* name = part.kind == PartKind::kReasoning ? "thinking" : chat_ ? "content" : "response";
    said[name] = said.value(name, "") + part.text;
  }
  static void add_call(Json& said, const ToolCall& call) {
    Json arguments = parse_written(call.arguments);
    if (!arguments.is_object()) arguments = Json::object();
    if (!said.contains("tool_calls")) said["tool_calls"] = Json::array();
    said["tool_calls"].push_back(
        {{"id", call.id}, {"function", {{"name", call.name}, {"arguments", std::move(arguments)}}}});
  }

  Json head(Json said, bool done) const {
    Json json{{"model", model_}, {"created_at", now_text()}};
    if (chat_) json["message"] = std::move(said);
    else json.update(said);
    json["done"] = done;
    return json;
  }

  Json last(Json said, const ChoiceEnd& end) const {
    const auto nanoseconds = [](double ms) { return int64_t(std::llround(ms * 1e6)); };
    const Timings& t = end.result.timings;
    const bool whole = end.result.reason == FinishReason::kEnd || end.result.reason == FinishReason::kStop;
    Json json = head(std::move(said), true);
    json["done_reason"] = whole ? "stop" : "length";
    json["total_duration"] = nanoseconds(t.prompt_ms + t.decode_ms);
    json["load_duration"] = 0;
    json["prompt_eval_count"] = prompt_tokens_;
    json["prompt_eval_duration"] = nanoseconds(t.prompt_ms);
    json["eval_count"] = t.generated_tokens;
    json["eval_duration"] = nanoseconds(t.decode_ms);
    return json;
  }

  const bool chat_;
  ToolCall call_{};  // that is on its way
};

}  // namespace

CompletionRequest parse_ollama_chat(std::string_view text, const Limits& limits) {
  const Json json = parse_object(text);
  FieldReader body(json, "");
  Json chat = Json::object(), messages = Json::array();
  const Json* given = body.get_list("messages");
  for (size_t i = 0; given && i < given->size(); ++i)
    messages.push_back(read_ollama_message((*given)[i], fmt::format("messages[{}]", i)));
  chat["messages"] = std::move(messages);
  body.pass(chat, "tools");
  read_common_fields(body, chat);
  body.done();
  return as_ollama(read_chat_request(chat, limits), Protocol::kOllamaChat);
}

CompletionRequest parse_ollama_generate(std::string_view text, const Limits& limits) {
  const Json json = parse_object(text);
  FieldReader body(json, "");
  Json chat = Json::object();
  const std::string prompt = body.text("prompt"), system = body.text("system", "");
  for (const char* name : {"suffix", "images", "template", "context"})
    if (!is_off(body.get(name))) throw body.wrong(name, "is not supported");
  const bool raw = body.flag("raw", false);
  read_common_fields(body, chat);
  body.done();
  if (raw) {
    if (!system.empty()) throw body.wrong("system", "is for prompts that are not raw");
    chat["prompt"] = prompt;
    chat.emplace("max_tokens", -1);
    chat.erase("chat_template_kwargs");
    return as_ollama(read_text_request(chat, limits), Protocol::kOllamaGenerate);
  }
  chat["messages"] = Json::array({{{"role", "user"}, {"content", prompt}}});
  if (!system.empty()) chat["messages"].insert(chat["messages"].begin(), Json{{"role", "system"}, {"content", system}});
  return as_ollama(read_chat_request(chat, limits), Protocol::kOllamaGenerate);
}

std::string ollama_load_answer(std::string_view text, const std::string& model, bool chat) {
  const Json json = parse_object(text);
  if (!is_off(field(json, chat ? "messages" : "prompt"))) return {};
  Json answer{{"model", model}, {"created_at", now_text()}};
  if (chat) answer["message"] = {{"role", "assistant"}, {"content", ""}};
  else answer["response"] = "";
  answer["done"] = true;
  answer["done_reason"] = "load";
  return text_of(answer);
}

std::unique_ptr<AnswerWriter> ollama_writer(const CompletionRequest& request, const AnswerFacts& facts) {
  return std::make_unique<OllamaWriter>(request, facts);
}

}  // namespace sx::server
