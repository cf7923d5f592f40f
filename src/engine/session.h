// A session: one text, its place in the KV store, and the loop that extends it. The last token of the text is always
// pending: part of the text, not yet in the cache. A round runs it (as the only node of a tree), commits it, and lets the
// next token be chosen.
#pragma once
#include <chrono>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "spec/penalties.h"
#include "specextend/specextend.h"

namespace sx {

class SessionImpl : public Session {
 public:
  explicit SessionImpl(EngineImpl& engine);
  ~SessionImpl() override;

  GenerateResult generate(std::span<const Token> prompt, const GenerateOptions& options) override;
  std::span<const float> evaluate(std::span<const Token> tokens, int outputs) override;
  void truncate(int length) override;
  int length() const override;

 private:
  void check_tokens(std::span<const Token> tokens) const;
  // Keeps the common prefix of the cache with `text`, drops the rest.
  int reuse(std::span<const Token> text);
  // One step over a chain of tokens; logits of the last `outputs` rows.
  const float* extend(std::span<const Token> tokens, int outputs);
  // Runs tokens through the cache chunk by chunk; false when cancelled.
  bool prefill(std::span<const Token> tokens, const GenerateOptions& options, int done, int total);
  Token choose(const float* logits, const Sampling& sampling, std::span<const TokenBias> bias, const PenaltyWindow& window);
  void decode(const GenerateOptions& options, GenerateResult& result, Token pending, PenaltyWindow& window);

  EngineImpl& engine_;
  SeqId seq_;
  std::vector<Token> cached_;        // tokens whose K/V is committed
  std::vector<int32_t> positions_;   // scratch, [max rows]
  std::vector<int32_t> outputs_;     // scratch
};

}  // namespace sx
