// One text and its cells in the KV cache, which drafters follow. While a request is decoded the last token of the text
// is pending: part of the text, not yet in the cache; a round runs it as node 0 of a tree.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "engine/engine_parts.h"

namespace sx {

// Throws sx::Error naming the first token that the vocabulary does not have.
void check_tokens(std::span<const Token> tokens, int vocab);
// The error for logits that are NaN or infinite, of the token at a position of the text.
std::string broken_logits(size_t position);

class CachedText {
 public:
  explicit CachedText(const EngineParts& parts);
  ~CachedText();
  CachedText(const CachedText&) = delete;
  CachedText& operator=(const CachedText&) = delete;

  SeqId seq() const { return seq_; }
  int length() const { return parts_.sequences->length(seq_); }  // tokens in the cache
  std::vector<Token>& tokens() { return tokens_; }               // and the pending one, while a request is decoded
  const std::vector<Token>& tokens() const { return tokens_; }

  // Whether truncate(length) is possible: all cells that the next token sees are there (see WindowMemory).
  bool can_return(int length) const { return !parts_.windows || parts_.windows->can_return(seq_, length); }
  // Forgets the text from `length` tokens on.
  void truncate(int length);
  // Forgets what is not committed: uncommitted nodes, the pending token.
  void drop_pending() { truncate(length()); }
  // Keeps the common prefix of the cache with `text`, or nothing if the text cannot return there, and drops the rest;
  // returns the length that is left. `drafter`: the one that will read on, or null. It may have the target run at most
  // `again` tokens again whose pass it has not seen; where it lacks more it goes without the text.
  int reuse(std::span<const Token> text, const Drafter* drafter, int again);
  // Tokens whose cells a pass has written become part of the text: rows of its outputs from `first_row` on. `spec`:
  // whose drafter follows; null: none does.
  void append(std::span<const Token> tokens, const StepOutputs& outputs, int first_row, Speculation* spec);
  // Tokens whose cells have been filled by other means than a pass (copied, restored).
  void adopt(std::span<const Token> tokens);

 private:
  const EngineParts& parts_;
  SeqId seq_;
  std::vector<Token> tokens_;
};

}  // namespace sx
