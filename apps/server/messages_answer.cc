// Answers of Anthropic's Messages.
#include "server/protocol_parts.h"
#include "server/tool_schema.h"

namespace sx::server {
namespace {

using PartKind = AnswerPart::Kind;

// Arguments as an object; a call that was cut off has none.
Json object_of(const std::string& arguments) {
  Json json = parse_written(arguments);
  return json.is_object() ? json : Json::object();
}

class MessagesWriter final : public PartWriter {
 public:
  using PartWriter::PartWriter;

  std::string error(const ApiError& error) override { return named_event(messages_error(error, request_id_)); }
  std::string_view ping() const override { return "event: ping\ndata: {\"type\": \"ping\"}\n\n"; }

 private:
  std::string body(const std::vector<AnswerPart>& parts, const ChoiceEnd& end) override {
    Json content = Json::array();
    for (const AnswerPart& part : parts) {
      Json block = empty_block(part);
      if (part.kind == PartKind::kReasoning && !hide_reasoning_) block["thinking"] = part.text;
      if (part.kind == PartKind::kContent) block["text"] = part.text;
      if (part.kind == PartKind::kCall) block["input"] = object_of(part.call.arguments), called_ = true;
      content.push_back(std::move(block));
    }
    Json message = head();
    message["content"] = std::move(content);
    message.update(ending(end));
    message["usage"] = usage(end.result.timings.generated_tokens);
    return text_of(message);
  }

  std::string start() override {
    Json message = head();
    message["usage"] = usage(0);
    return named_event({{"type", "message_start"}, {"message", std::move(message)}});
  }

  std::string tell(const AnswerPart& part) override {
    std::string events;
    if (part.kind == PartKind::kCall || !open_ || (part.kind != PartKind::kArguments && part.kind != kind_)) {
      events = close_block();
      open_ = true, kind_ = part.kind;
      called_ = called_ || part.kind == PartKind::kCall;
      events += named_event({{"type", "content_block_start"}, {"index", index_}, {"content_block", empty_block(part)}});
    }
    if (part.kind == PartKind::kReasoning && hide_reasoning_) return events;
    const std::string& text = part.kind == PartKind::kCall ? part.call.arguments : part.text;
    const bool json = part.kind == PartKind::kCall || part.kind == PartKind::kArguments;
    if (text.empty()) return events;
    return events + delta_event(json ? Json{{"type", "input_json_delta"}, {"partial_json", text}}
                                : part.kind == PartKind::kReasoning
                                    ? Json{{"type", "thinking_delta"}, {"thinking", text}}
                                    : Json{{"type", "text_delta"}, {"text", text}});
  }

  std::string stop(const ChoiceEnd& end) override {
    return close_block() +
           named_event({{"type", "message_delta"},
                        {"delta", ending(end)},
                        {"usage", usage(end.result.timings.generated_tokens)}}) +
           named_event({{"type", "message_stop"}});
  }

  Json head() const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model_},
            {"content", Json::array()},
            {"stop_reason", nullptr},
            {"stop_sequence", nullptr}};
  }

  Json ending(const ChoiceEnd& end) const {
    const FinishReason reason = end.result.reason;
    const bool stopped = reason == FinishReason::kStop;
    const char* name = reason != FinishReason::kEnd && !stopped ? "max_tokens"
                       : called_                                ? "tool_use"
                       : stopped                                ? "stop_sequence"
                                                                : "end_turn";
    return {{"stop_reason", name}, {"stop_sequence", stopped && !called_ ? Json(end.stopping_word) : Json(nullptr)}};
  }

  Json usage(int generated) const {
    return {{"input_tokens", prompt_tokens_ - cached_},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", cached_},
            {"output_tokens", generated}};
  }

  static Json empty_block(const AnswerPart& part) {
    if (part.kind == PartKind::kReasoning) return {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
    if (part.kind == PartKind::kContent) return {{"type", "text"}, {"text", ""}};
    return {{"type", "tool_use"}, {"id", part.call.id}, {"name", part.call.name}, {"input", Json::object()}};
  }

  std::string delta_event(Json delta) const {
    return named_event({{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(delta)}});
  }

  std::string close_block() {
    if (!open_) return {};
    open_ = false;
    std::string events;
    if (kind_ == PartKind::kReasoning) events = delta_event({{"type", "signature_delta"}, {"signature", ""}});
    return events + named_event({{"type", "content_block_stop"}, {"index", index_++}});
  }

  const std::string id_ = "msg_" + random_id();
  int index_ = 0;  // of the block that is open, or comes next
  bool open_ = false, called_ = false;
  PartKind kind_ = PartKind::kContent;
};

const char* error_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

std::unique_ptr<AnswerWriter> messages_writer(const CompletionRequest& request, const AnswerFacts& facts) {
  return std::make_unique<MessagesWriter>(request, facts);
}

Json messages_error(const ApiError& error, const std::string& request_id) {
  // Clients tell this error from others by its first words.
  const bool long_prompt = error.code == "context_length_exceeded";
  Json json{{"type", "error"},
            {"error",
             {{"type", error_type(error.status)},
              {"message", (long_prompt ? "prompt is too long: " : "") + std::string(error.what())}}}};
  json["request_id"] = request_id.empty() ? Json(nullptr) : Json(request_id);
  return json;
}

}  // namespace sx::server
