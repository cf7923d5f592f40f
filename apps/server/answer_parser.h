// What a model's text says, as it comes: thoughts, content, and calls of tools whose arguments may come in pieces.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/reasoning.h"
#include "server/request.h"
#include "server/tools.h"

namespace sx::server {

// Puts parts behind others; those that go on with the one before become one with it.
void append_parts(std::vector<AnswerPart>& to, std::vector<AnswerPart>&& more);

class AnswerParser {
 public:
  struct Output {
    std::vector<AnswerPart> parts;
    size_t taken = 0;  // bytes of the text that are decided by now, in all
  };
  explicit AnswerParser(const CompletionRequest& request);
  Output add(std::string_view text);
  Output finish();
  std::vector<AnswerPart> all(std::string_view text);  // add() and finish()
  const Places& thoughts() const { return splitter_.thoughts(); }

 private:
  void take(ReasoningSplitter::Pieces&& pieces, std::vector<AnswerPart>& parts);
  Output done(std::vector<AnswerPart>&& parts) const;

  ReasoningSplitter splitter_;
  std::optional<ToolParser> tools_;
  size_t passed_ = 0, read_ = 0;  // bytes that are no thought, and those of them that are decided
};

}  // namespace sx::server
