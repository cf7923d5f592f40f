#include "engine/session.h"

#include <algorithm>

#include "base/error.h"
#include "tensor/finite.h"

namespace sx {

std::string broken_logits(size_t position) {
  return fmt::format("the model's logits for the token at position {} are NaN or infinite: its weights are damaged, or too large for the types it is run with",
                     position);
}

SessionImpl::SessionImpl(EngineImpl& engine) : engine_(engine), seq_(engine.sequences().open()) {
  text_.reserve(size_t(engine.context()) + 1);
  positions_.resize(size_t(engine.options().chunk));
  outputs_.resize(size_t(engine.options().max_outputs));
  for (const auto& spec : engine.speculations())
    if (spec->drafter()) spec->drafter()->open(seq_);
}

SessionImpl::~SessionImpl() {
  for (const auto& spec : engine_.speculations())
    if (spec->drafter()) spec->drafter()->close(seq_);
  engine_.sequences().close(seq_);
}

int SessionImpl::length() const { return engine_.sequences().length(seq_); }

void SessionImpl::truncate(int length) {
  if (length < 0 || length > this->length()) fail("cannot truncate a session of {} tokens to {}", this->length(), length);
  engine_.sequences().truncate(seq_, length);
  settle();
}

void SessionImpl::settle() {
  engine_.sequences().truncate(seq_, length());
  text_.resize(size_t(length()));
  for (const auto& spec : engine_.speculations())
    if (spec->drafter()) spec->drafter()->truncate(seq_, length());
}

void SessionImpl::check_tokens(std::span<const Token> tokens) const {
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= engine_.vocab())
      fail("token {} at place {} is outside the vocabulary of {}", tokens[i], i, engine_.vocab());
}

int SessionImpl::reuse(std::span<const Token> text, const Drafter* drafter) {
  const size_t most = std::min(text.size(), text_.size());
  const size_t same = size_t(std::mismatch(text.begin(), text.begin() + ptrdiff_t(most), text_.begin()).first - text.begin());
  truncate(int(same));
  // A drafter may need the inside of the last tokens' pass again; the tokens are the same, so what it keeps stays right.
  if (drafter && drafter->covered(seq_) < int(same)) {
    engine_.sequences().truncate(seq_, drafter->covered(seq_));
    text_.resize(size_t(length()));
  }
  return length();
}

const float* SessionImpl::extend(std::span<const Token> tokens, int outputs) {
  const int rows = int(tokens.size()), history = length();
  for (int i = 0; i < rows; ++i) positions_[size_t(i)] = history + i;
  for (int i = 0; i < outputs; ++i) outputs_[size_t(i)] = rows - outputs + i;
  const SeqRows seq{0, rows, seq_, history, nullptr, 0};
  // Few rows, all of whose logits are wanted, are what verifying a draft is: they are run like that, not like a prompt.
  const bool prompt = outputs < rows || rows - 1 > engine_.device().max_depth();
  const StepOutputs& out = engine_.model().forward(
      {tokens, std::span(positions_).first(size_t(rows)), std::span(&seq, 1), std::span(outputs_).first(size_t(outputs)), prompt},
      engine_.kv());
  append(tokens, out, 0, engine_.speculation().drafter());
  return out.logits;
}

void SessionImpl::append(std::span<const Token> tokens, const StepOutputs& outputs, int first_row, Drafter* drafter) {
  const int rows = int(tokens.size()), history = length();
  engine_.sequences().append(seq_, rows);
  text_.insert(text_.end(), tokens.begin(), tokens.end());
  if (drafter && drafter->reads_target()) drafter->prompt({seq_, history, rows, &outputs, text_, first_row});
}

std::span<const float> SessionImpl::evaluate(std::span<const Token> tokens, int outputs) {
  check_tokens(tokens);
  if (tokens.empty()) fail("evaluate: no tokens");
  if (outputs < 0 || outputs > engine_.options().max_outputs || outputs > engine_.options().chunk || size_t(outputs) > tokens.size())
    fail("evaluate: logits of {} rows wanted, {} tokens, at most {} possible", outputs, tokens.size(),
         std::min(engine_.options().max_outputs, engine_.options().chunk));
  if (!engine_.sequences().can_extend(seq_, int(tokens.size())))
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
    if (is_broken_row(logits_.data() + size_t(i) * vocab, vocab)) throw Error(broken_logits(size_t(length() - outputs + i + 1)));
  return logits_;
}

GenerateResult SessionImpl::generate(std::span<const Token> prompt, const GenerateOptions& options) {
  const Request request{this, prompt, &options};
  return std::move(engine_.generate(std::span(&request, 1)).front());
}

}  // namespace sx
