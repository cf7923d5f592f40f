// A session: one text and its place in the KV store. The last token of a text being continued is always pending: part of the
// text, not yet in the cache; a round runs it as node 0 of a tree.
#pragma once
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "specextend/engine.h"

namespace sx {

// What to say of logits that are no numbers, for the token at a place of the text.
std::string broken_logits(size_t position);

class SessionImpl : public Session {
 public:
  explicit SessionImpl(EngineImpl& engine);
  ~SessionImpl() override;

  GenerateResult generate(std::span<const Token> prompt, const GenerateOptions& options) override;
  std::span<const float> evaluate(std::span<const Token> tokens, int outputs) override;
  void truncate(int length) override;
  int length() const override;
  std::span<const Token> text() const override { return std::span(text_).first(size_t(length())); }
  void copy_from(const Session& other, int length) override;
  void save(std::ostream& to) const override;
  void restore(std::istream& from) override;
  size_t save_bytes() const override;
  const Tokenizer& tokenizer() const override { return engine_.tokenizer(); }

  // For generations.
  EngineImpl& engine() { return engine_; }
  SeqId seq() const { return seq_; }
  std::vector<Token>& tokens() { return text_; }
  void check_tokens(std::span<const Token> tokens) const;
  // Keeps the common prefix of the cache with `text`, drops the rest; returns its length. `drafter`: that will read on, or null.
  int reuse(std::span<const Token> text, const Drafter* drafter);
  // Tokens that a pass has written behind the cache, from row `first_row` of its outputs on, become history. `drafter`: that follows.
  void append(std::span<const Token> tokens, const StepOutputs& outputs, int first_row, Drafter* drafter);
  // Drops what is not committed: uncommitted nodes, the pending token.
  void settle();

 private:
  // One step over a chain of tokens, which become history; logits of the last `outputs` rows.
  const float* extend(std::span<const Token> tokens, int outputs);

  EngineImpl& engine_;
  SeqId seq_;
  std::vector<Token> text_;          // cached tokens, then (while generating) the pending one
  std::vector<int32_t> positions_;   // scratch, [max rows]
  std::vector<int32_t> outputs_;     // scratch
  std::vector<float> logits_;            // of the last evaluate()
};

}  // namespace sx
