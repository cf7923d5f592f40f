#include "server/answer_parser.h"

#include <utility>

namespace sx::server {

AnswerParser::AnswerParser(const CompletionRequest& request) : splitter_(request.reasoning, request.reasoning_start) {
  // Without tools it takes away the marks of channels that come with those of thoughts.
  if (!request.tool_names.empty() || (request.reasoning.any() && request.reasoning.control))
    tools_.emplace(request.tool_format, request.tool_names, request.parallel_tool_calls, request.tool_list,
                   request.stream);
}

void append_parts(std::vector<AnswerPart>& to, std::vector<AnswerPart>&& more) {
  using Kind = AnswerPart::Kind;
  for (AnswerPart& part : more) {
    AnswerPart* last = to.empty() ? nullptr : &to.back();
    if (last && part.kind == Kind::kArguments && last->kind == Kind::kCall) {
      last->call.arguments += part.text;
    } else if (last && part.kind == last->kind && part.kind != Kind::kCall) {
      last->text += part.text;
      for (const auto& [from, end] : part.places) add_place(last->places, from, end);
    } else {
      to.push_back(std::move(part));
    }
  }
}

void AnswerParser::take(ReasoningSplitter::Pieces&& pieces, std::vector<AnswerPart>& parts) {
  for (auto& [reasoning, text] : pieces) {
    if (reasoning) {
      append_parts(parts, {{.kind = AnswerPart::Kind::kReasoning, .text = std::move(text)}});
      continue;
    }
    const size_t from = std::exchange(passed_, passed_ + text.size());
    if (tools_) {
      ToolParser::Output found = tools_->add(text);
      read_ = found.taken;
      append_parts(parts, std::move(found.parts));
    } else {
      read_ = passed_;
      append_parts(parts, {{.text = std::move(text), .places = {{from, passed_}}}});
    }
  }
}

AnswerParser::Output AnswerParser::done(std::vector<AnswerPart>&& parts) const {
  return {std::move(parts), splitter_.taken() - (passed_ - read_)};
}

AnswerParser::Output AnswerParser::add(std::string_view text) {
  std::vector<AnswerPart> parts;
  take(splitter_.add(text), parts);
  return done(std::move(parts));
}

AnswerParser::Output AnswerParser::finish() {
  std::vector<AnswerPart> parts;
  take(splitter_.finish(), parts);
  if (tools_) {
    ToolParser::Output found = tools_->finish();
    read_ = found.taken;
    append_parts(parts, std::move(found.parts));
  }
  return done(std::move(parts));
}

std::vector<AnswerPart> AnswerParser::all(std::string_view text) {
  std::vector<AnswerPart> parts = add(text).parts;
  append_parts(parts, finish().parts);
  return parts;
}

}  // namespace sx::server
