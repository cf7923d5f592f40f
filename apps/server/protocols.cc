#include "server/protocols.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/protocol_parts.h"

namespace sx::server {

FieldReader::FieldReader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (!object.is_object()) throw bad_request(fmt::format("'{}' must be an object", where_), where_);
}

ApiError FieldReader::wrong(const char* name, const std::string& why) const {
  return bad_request(fmt::format("'{}' {}", name_of(name), why), name_of(name));
}

const Json* FieldReader::get(const char* name) {
  known_.emplace_back(name);
  return field(object_, name);
}

const Json* FieldReader::get_list(const char* name) {
  const Json* value = get(name);
  if (value && !value->is_array()) throw wrong(name, "must be a list");
  return value;
}

const Json* FieldReader::get_object(const char* name) {
  const Json* value = get(name);
  if (value && !value->is_object()) throw wrong(name, "must be an object");
  return value;
}

std::string FieldReader::text(const char* name, const char* otherwise) {
  const Json* value = get(name);
  if (!value && otherwise) return otherwise;
  if (!value || !value->is_string()) throw wrong(name, "must be there and a string");
  return value->get<std::string>();
}

bool FieldReader::flag(const char* name, bool otherwise) {
  const Json* value = get(name);
  if (value && !value->is_boolean()) throw wrong(name, "must be true or false");
  return value ? value->get<bool>() : otherwise;
}

void FieldReader::ignore(std::initializer_list<const char*> names) {
  known_.insert(known_.end(), names.begin(), names.end());
}

void FieldReader::pass(Json& chat, const char* name, const char* as) {
  if (const Json* value = get(name)) chat[as ? as : name] = *value;
}

void FieldReader::pass_extensions(Json& chat) {
  for (const char* name : {"seed",
                           "top_k",
                           "min_p",
                           "presence_penalty",
                           "frequency_penalty",
                           "repeat_penalty",
                           "repetition_penalty",
                           "repeat_last_n",
                           "logit_bias",
                           "ignore_eos",
                           "min_tokens",
                           "stop_token_ids",
                           "cache_prompt",
                           "cache_salt",
                           "speculate",
                           "spec_preset",
                           "spec_nodes",
                           "spec_depth",
                           "grammar",
                           "chat_template_kwargs",
                           "reasoning_format"})
    pass(chat, name);
}

void FieldReader::done() const {
  for (const auto& [name, value] : object_.items())
    if (!value.is_null() && std::ranges::find(known_, name) == known_.end())
      throw bad_request(fmt::format("'{}' is not supported", name_of(name.c_str())), name_of(name.c_str()));
}

Json chat_tool(const std::string& name, const Json* description, const Json* schema) {
  Json function{{"name", name}};
  if (description) function["description"] = *description;
  if (schema) function["parameters"] = *schema;
  return {{"type", "function"}, {"function", std::move(function)}};
}

Json chat_call(const std::string& id, const std::string& name, const std::string& arguments) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

void add_message(Json& messages, Json message) {
  const auto is_plain = [](const Json& one) { return one.size() == 2 && one.at("content").is_string(); };
  const bool same = !messages.empty() && messages.back().at("role") == message.at("role") && is_plain(message) &&
                    is_plain(messages.back());
  if (!same) return messages.push_back(std::move(message));
  messages.back()["content"] =
      messages.back().at("content").get<std::string>() + "\n\n" + message.at("content").get<std::string>();
}

std::string named_event(const Json& json) {
  return fmt::format("event: {}\ndata: {}\n\n", json.at("type").get_ref<const std::string&>(), text_of(json));
}

PartWriter::PartWriter(const CompletionRequest& request, const AnswerFacts& facts)
    : model_(facts.model),
      request_id_(facts.request_id),
      hide_reasoning_(request.protocol_facts && request.protocol_facts->hide_reasoning),
      facts_(request.protocol_facts),
      prompt_tokens_(facts.prompt_tokens.at(0)),
      logprobs_(request.logprobs),
      parser_(request) {}

std::string PartWriter::tell(std::vector<AnswerPart>&& parts) {
  std::string events;
  for (const AnswerPart& part : parts) events += tell(part);
  return events;
}

void PartWriter::count_thoughts(std::span<const AnswerToken> tokens, size_t taken) {
  thoughts_.add(tokens);
  reasoning_tokens_ += thoughts_.count(taken, parser_.thoughts());
}

std::vector<AnswerToken> PartWriter::take_tokens(const Places& content) {
  const Places& thoughts = parser_.thoughts();
  std::vector<AnswerToken> taken;
  auto token = tokens_.begin();
  for (; token != tokens_.end(); ++token) {
    const size_t end = bytes_outside(thoughts, token->end);
    if (end > content.back().second) break;
    const bool is_content = token->in_text && !is_in(thoughts, token->end) && is_in(content, end);
    if (is_content) taken.push_back(std::move(*token));
  }
  tokens_.erase(tokens_.begin(), token);
  return taken;
}

std::string PartWriter::whole(const std::vector<ChoiceEnd>& ends) {
  const ChoiceEnd& end = ends.at(0);
  cached_ = end.result.timings.cached_tokens;
  const std::vector<AnswerPart> parts = parser_.all(end.result.text);
  count_thoughts(end.rest.tokens, end.result.text.size());
  if (logprobs_ >= 0) tokens_ = end.rest.tokens;
  return body(parts, end);
}

std::string PartWriter::begin(int) { return std::exchange(begun_, true) ? std::string() : start(); }

std::string PartWriter::delta(int choice, ChoiceDelta change) {
  if (change.progress) cached_ = change.progress->cached;
  std::string events = change.any() ? begin(choice) : "";
  if (logprobs_ >= 0) tokens_.insert(tokens_.end(), change.piece.tokens.begin(), change.piece.tokens.end());
  AnswerParser::Output out = parser_.add(change.piece.text);
  count_thoughts(change.piece.tokens, out.taken);
  return events + tell(std::move(out.parts));
}

std::string PartWriter::end(int choice, const ChoiceEnd& end) {
  cached_ = end.result.timings.cached_tokens;
  std::string events = begin(choice);
  if (logprobs_ >= 0) tokens_.insert(tokens_.end(), end.rest.tokens.begin(), end.rest.tokens.end());
  std::vector<AnswerPart> parts = parser_.add(end.rest.text).parts;
  AnswerParser::Output rest = parser_.finish();
  append_parts(parts, std::move(rest.parts));
  count_thoughts(end.rest.tokens, rest.taken);
  return events + tell(std::move(parts)) + stop(end);
}

std::unique_ptr<AnswerWriter> protocol_writer(const CompletionRequest& request, const AnswerFacts& facts) {
  switch (request.protocol) {
    case Protocol::kOpenAi: return nullptr;
    case Protocol::kMessages: return messages_writer(request, facts);
    case Protocol::kResponses: return responses_writer(request, facts);
    case Protocol::kOllamaChat:
    case Protocol::kOllamaGenerate: return ollama_writer(request, facts);
  }
  return nullptr;
}

std::string error_body_for(std::string_view path, const ApiError& error, const std::string& request_id) {
  if (path.starts_with("/v1/messages") || path.starts_with("/messages"))
    return text_of(messages_error(error, request_id));
  if (path.starts_with("/api/")) return text_of(Json{{"error", error.what()}});
  return error_body(error, request_id);
}

}  // namespace sx::server
