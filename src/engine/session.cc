#include "engine/session.h"

#include <algorithm>

#include "backend/kv_stream.h"
#include "base/error.h"
#include "tensor/finite.h"

namespace sx {

SessionImpl::SessionImpl(EngineImpl& engine) : engine_(engine), text_(engine.parts()) {
  positions_.resize(size_t(engine.options().chunk));
  outputs_.resize(size_t(engine.options().max_outputs));
}

void SessionImpl::truncate(int length) {
  if (length < 0 || length > this->length())
    fail("cannot truncate a session of {} tokens to {}", this->length(), length);
  if (text_.can_return(length)) return text_.truncate(length);
  read_again(std::vector<Token>(text().begin(), text().begin() + length));
}

void SessionImpl::read_again(std::span<const Token> tokens) {
  text_.truncate(0);
  if (!tokens.empty()) evaluate(tokens, 0);
}

const float* SessionImpl::extend(std::span<const Token> tokens, int outputs) {
  const int rows = int(tokens.size()), history = length();
  for (int i = 0; i < rows; ++i) positions_[size_t(i)] = history + i;
  for (int i = 0; i < outputs; ++i) outputs_[size_t(i)] = rows - outputs + i;
  while (!hold_cells(engine_.kv(), text_.seq(), history, history + rows)) make_room(history + rows);
  Drafter* drafter = engine_.speculation().drafter();
  if (drafter && drafter->reads_target() && !drafter->hold(text_.seq(), history + rows)) {
    drafter->truncate(text_.seq(), 0);
    drafter = nullptr;
  }
  const SeqRows seq{.first_row = 0, .rows = rows, .slot = text_.seq(), .history = history};
  // Few rows, all of whose logits are wanted, are what verifying a draft is: they are run like that, not like a prompt.
  const bool prompt = outputs < rows || rows - 1 > engine_.device().max_depth();
  const StepOutputs& out = engine_.model().forward({.tokens = tokens,
                                                    .positions = std::span(positions_).first(size_t(rows)),
                                                    .seqs = std::span(&seq, 1),
                                                    .outputs = std::span(outputs_).first(size_t(outputs)),
                                                    .prompt = prompt},
                                                   engine_.kv());
  text_.append(tokens, out, 0, drafter ? &engine_.speculation() : nullptr);
  return out.logits;
}

std::span<const float> SessionImpl::evaluate(std::span<const Token> tokens, int outputs) {
  check_tokens(tokens, engine_.vocab());
  if (tokens.empty()) fail("evaluate: no tokens");
  if (outputs < 0 || outputs > engine_.options().max_outputs || outputs > engine_.options().chunk ||
      size_t(outputs) > tokens.size())
    fail("evaluate: logits of {} rows wanted, {} tokens, at most {} possible", outputs, tokens.size(),
         std::min(engine_.options().max_outputs, engine_.options().chunk));
  if (!engine_.sequences().can_extend(text_.seq(), int(tokens.size())))
    fail("{} tokens do not fit behind {} in a context of {}", tokens.size(), length(), engine_.context());
  const size_t chunk = size_t(engine_.options().chunk);
  const float* logits = nullptr;
  while (!tokens.empty()) {  // the last chunk must hold all rows whose logits are wanted
    size_t n = std::min(chunk, tokens.size());
    if (n < tokens.size() && tokens.size() - n < size_t(outputs)) n = tokens.size() - size_t(outputs);
    logits = extend(tokens.first(n), n == tokens.size() ? outputs : 0);
    tokens = tokens.subspan(n);
  }
  logits_.resize(size_t(outputs) * size_t(engine_.vocab()));
  if (outputs > 0) engine_.device().download(logits_.data(), logits, logits_.size());
  const size_t vocab = size_t(engine_.vocab());
  for (int i = 0; i < outputs; ++i)
    if (is_broken_row(logits_.data() + size_t(i) * vocab, vocab))
      throw Error(broken_logits(size_t(length() - outputs + i + 1)));
  return logits_;
}

GenerateResult SessionImpl::generate(std::span<const Token> prompt, const GenerateOptions& options) {
  const Request request{this, prompt, &options};
  return std::move(engine_.generate(std::span(&request, 1)).front());
}

}  // namespace sx
