// Reasoning apart from the answer: which marks a model's template puts around its thoughts, how they are split from the
// text that follows, and grammars that bind only what follows.
#pragma once
#include <specextend/specextend.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/places.h"

namespace sx::server {

// The marks around a thought. Empty ones: the model has none, or nobody asked for the split.
struct ReasoningStyle {
  std::string open{}, close{};
  bool control = false;          // they are control tokens: the text must show these
  std::string next{}, answer{};  // marks that may stand between a thought and the answer: of a turn, of the answer
  bool any() const { return !close.empty(); }
};
// What a chat template says of thoughts.
ReasoningStyle reasoning_style(std::string_view chat_template);
// The same with `control` as the vocabulary has it.
ReasoningStyle reasoning_style(const Tokenizer& tokenizer);

enum class ReasoningStart {
  kMaybe,   // the answer may begin with a thought
  kOpened,  // the prompt has begun one
  kOver,    // the prompt has ended one, or begun the answer proper
};
// Where a prompt leaves the model, by its last tokens.
ReasoningStart reasoning_start(const Tokenizer& tokenizer, std::span<const Token> prompt, const ReasoningStyle& style);

// Puts what the assistant has begun to think and to say behind a prompt; a thought that the prompt has opened ends
// where it begins to say something.
void append_prefill(std::string& prompt, const std::string& reasoning, const std::string& content,
                    const ReasoningStyle& style);

// Ends a thought that the prompt has opened: the answer comes at once.
void close_thought(std::string& prompt, const ReasoningStyle& style);

// A grammar that binds the answer behind the thought, which is free.
std::string after_reasoning(const std::string& grammar, const ReasoningStyle& style, ReasoningStart start);

// The texts of two grammars.
std::string either_grammar(const std::string& one, const std::string& other);

// Divides a text that comes in pieces. White space around a thought belongs to neither part.
class ReasoningSplitter {
 public:
  struct Piece {
    bool reasoning;
    std::string text;
  };
  using Pieces = std::vector<Piece>;
  ReasoningSplitter(ReasoningStyle style, ReasoningStart start);
  Pieces add(std::string_view text);
  Pieces finish();
  size_t taken() const { return taken_; }  // bytes of the text that are decided by now, in all
  // Where thoughts are in them, with their marks and what is around these.
  const Places& thoughts() const { return thoughts_; }

 private:
  enum class State { kBegin, kOpened, kThought, kAnswer };
  bool step(Pieces& out, bool last);
  bool step_begin(bool last);
  bool step_thought(Pieces& out, bool last);
  bool step_answer(Pieces& out, bool last);
  void give(Pieces& out, size_t size);
  void drop(size_t size, bool thought = true);

  const ReasoningStyle style_;
  State state_;
  bool skip_spaces_ = false;
  std::string held_{};
  size_t taken_ = 0;
  Places thoughts_{};
};

}  // namespace sx::server
