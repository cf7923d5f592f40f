// Answers of OpenAI's Responses.
#include "server/protocol_parts.h"

namespace sx::server {
namespace {

using PartKind = AnswerPart::Kind;

class ResponsesWriter final : public PartWriter {
 public:
  ResponsesWriter(const CompletionRequest& request, const AnswerFacts& facts)
      : PartWriter(request, facts), echo_(facts_->echo), encrypted_(echo_.erase("include_encrypted") > 0) {}

  std::string error(const ApiError& error) override {
    Json failed = response("failed");
    failed["error"] = {{"code", error.status == 429 ? "rate_limit_exceeded" : "server_error"},
                       {"message", error.what()}};
    std::string events = begin(0);  // first: events are numbered as they are made
    events += event({{"type", "response.failed"}, {"response", std::move(failed)}});
    return events;
  }

 private:
  std::string body(const std::vector<AnswerPart>& parts, const ChoiceEnd& end) override {
    for (const AnswerPart& part : parts) tell(part);
    close_item();
    return text_of(finished(end));
  }

  std::string start() override {
    std::string events = event({{"type", "response.created"}, {"response", response("in_progress")}});
    events += event({{"type", "response.in_progress"}, {"response", response("in_progress")}});
    return events;
  }

  std::string tell(const AnswerPart& part) override {
    std::string events;
    if (part.kind == PartKind::kCall || !open_ || (part.kind != PartKind::kArguments && part.kind != kind_)) {
      events = close_item();
      events += open_item(part);
    }
    const std::string& more = part.kind == PartKind::kCall ? part.call.arguments : part.text;
    text_ += more;
    if (more.empty()) return events;
    Json delta = place(kind_ == PartKind::kCall        ? "response.function_call_arguments.delta"
                       : kind_ == PartKind::kReasoning ? "response.reasoning_text.delta"
                                                       : "response.output_text.delta");
    delta["delta"] = more;
    if (kind_ == PartKind::kContent) {
      delta["logprobs"] = logprobs_of(part);
      for (const Json& one : delta["logprobs"]) item_logprobs_.push_back(one);
    }
    return events + event(std::move(delta));
  }

  std::string stop(const ChoiceEnd& end) override {
    std::string events = close_item();
    Json response = finished(end);
    const std::string type = "response." + response.at("status").get<std::string>();
    return events + event({{"type", type}, {"response", std::move(response)}});
  }

  Json logprobs_of(const AnswerPart& content) {
    if (logprobs_ < 0) return Json::array();
    return chat_logprobs(take_tokens(content.places), {logprobs_, false}).at("content");
  }

  Json response(const char* status) const {
    Json json{{"id", id_},           {"object", "response"}, {"created_at", created_},        {"status", status},
              {"background", false}, {"error", nullptr},     {"incomplete_details", nullptr}, {"model", model_},
              {"output", output_}};
    json.update(echo_);
    json["usage"] = nullptr;
    return json;
  }

  Json finished(const ChoiceEnd& end) {
    const bool whole = end.result.reason == FinishReason::kEnd || end.result.reason == FinishReason::kStop;
    Json json = response(whole ? "completed" : "incomplete");
    if (!whole) json["incomplete_details"] = {{"reason", "max_output_tokens"}};
    const int generated = end.result.timings.generated_tokens;
    json["usage"] = {{"input_tokens", prompt_tokens_},
                     {"input_tokens_details", {{"cached_tokens", cached_}}},
                     {"output_tokens", generated},
                     {"output_tokens_details", {{"reasoning_tokens", reasoning_tokens_}}},
                     {"total_tokens", prompt_tokens_ + generated}};
    if (facts_->keep) facts_->keep(json);
    return json;
  }

  std::string event(Json json) {
    json["sequence_number"] = sequence_++;
    return named_event(json);
  }

  // Where an event is about: the item that is open, and its only part.
  Json place(const char* type, bool part = true) const {
    Json json{{"type", type}, {"item_id", item_.at("id")}, {"output_index", output_.size()}};
    if (part && kind_ != PartKind::kCall) json["content_index"] = 0;
    return json;
  }

  Json part_json() const {
    if (kind_ == PartKind::kReasoning) return {{"type", "reasoning_text"}, {"text", text_}};
    return {{"type", "output_text"}, {"text", text_}, {"annotations", Json::array()}, {"logprobs", item_logprobs_}};
  }

  std::string item_event(const char* type) {
    return event({{"type", type}, {"output_index", output_.size()}, {"item", item_}});
  }

  std::string open_item(const AnswerPart& part) {
    open_ = true, kind_ = part.kind, text_.clear(), item_logprobs_ = Json::array();
    if (kind_ == PartKind::kCall) {
      item_ = {{"id", "fc_" + random_id()}, {"type", "function_call"}, {"status", "in_progress"},
               {"call_id", part.call.id},   {"name", part.call.name},  {"arguments", ""}};
      return item_event("response.output_item.added");
    }
    if (kind_ == PartKind::kReasoning) {
      item_ = {
          {"id", "rs_" + random_id()}, {"type", "reasoning"}, {"summary", Json::array()}, {"content", Json::array()}};
      if (encrypted_) item_["encrypted_content"] = "";
    } else {
      item_ = {{"id", "msg_" + random_id()},
               {"type", "message"},
               {"status", "in_progress"},
               {"role", "assistant"},
               {"content", Json::array()}};
    }
    std::string events = item_event("response.output_item.added");
    Json added = place("response.content_part.added");
    added["part"] = part_json();
    return events + event(std::move(added));
  }

  std::string close_item() {
    if (!std::exchange(open_, false)) return {};
    std::string events;
    Json done = place(kind_ == PartKind::kCall        ? "response.function_call_arguments.done"
                      : kind_ == PartKind::kReasoning ? "response.reasoning_text.done"
                                                      : "response.output_text.done");
    if (kind_ == PartKind::kCall) {
      done["name"] = item_.at("name");
      done["arguments"] = item_["arguments"] = text_;
    } else {
      done["text"] = text_;
      if (kind_ == PartKind::kContent) done["logprobs"] = item_logprobs_;
      item_["content"] = Json::array({part_json()});
      if (kind_ == PartKind::kReasoning && encrypted_) item_["encrypted_content"] = text_;
    }
    events = event(std::move(done));
    if (kind_ != PartKind::kCall) {
      Json part = place("response.content_part.done");
      part["part"] = part_json();
      events += event(std::move(part));
    }
    if (item_.contains("status")) item_["status"] = "completed";
    events += item_event("response.output_item.done");
    output_.push_back(std::move(item_));
    return events;
  }

  const std::string id_ = "resp_" + random_id();
  const int64_t created_ = seconds_now();
  Json echo_;
  const bool encrypted_;  // thoughts are repeated for clients that keep nothing else of them
  Json output_ = Json::array(), item_{};
  int sequence_ = 0;
  bool open_ = false;
  PartKind kind_ = PartKind::kContent;
  std::string text_{};                  // of the item that is open
  Json item_logprobs_ = Json::array();  // of its text
};

}  // namespace

std::unique_ptr<AnswerWriter> responses_writer(const CompletionRequest& request, const AnswerFacts& facts) {
  return std::make_unique<ResponsesWriter>(request, facts);
}

}  // namespace sx::server
