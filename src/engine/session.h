// A session behind the public header: one text in the KV cache, which requests continue.
#pragma once
#include <memory>
#include <vector>

#include "engine/cached_text.h"
#include "engine/engine.h"
#include "specextend/engine.h"

namespace sx {

class SessionImpl : public Session {
 public:
  explicit SessionImpl(EngineImpl& engine);

  GenerateResult generate(std::span<const Token> prompt, const GenerateOptions& options) override;
  std::span<const float> evaluate(std::span<const Token> tokens, int outputs) override;
  void truncate(int length) override;
  int length() const override { return text_.length(); }
  std::span<const Token> text() const override { return std::span(text_.tokens()).first(size_t(length())); }
  void copy_from(const Session& other, int length) override;
  void save(std::ostream& to) const override;
  void restore(std::istream& from) override;
  size_t save_bytes() const override;
  const Tokenizer& tokenizer() const override { return engine_.tokenizer(); }

  // For requests.
  EngineImpl& engine() { return engine_; }
  CachedText& cached_text() { return text_; }

 private:
  // Throws sx::NoMemory where no text at rest can be forgotten for one of so many tokens.
  void make_room(int length);
  // The text becomes these tokens, from the beginning.
  void read_again(std::span<const Token> tokens);
  // One step over a chain of tokens, which become history; logits of the last `outputs` rows.
  const float* extend(std::span<const Token> tokens, int outputs);

  EngineImpl& engine_;
  CachedText text_;
  std::vector<int32_t> positions_;  // working memory, [max rows]
  std::vector<int32_t> outputs_;    // working memory
  std::vector<float> logits_;       // of the last evaluate()
};

}  // namespace sx
