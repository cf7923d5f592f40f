#include "engine/session.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/stop.h"

namespace sx {
namespace {

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void check(const GenerateOptions& o) {
  const SamplingOptions& s = o.sampling;
  const auto need = [](bool ok, const char* what, double value, const char* expected) {
    if (!ok) fail("{} is {}, expected {}", what, value, expected);
  };
  need(s.temperature >= 0 && std::isfinite(s.temperature), "temperature", s.temperature, "a number >= 0");
  need(s.top_k >= 0, "top_k", s.top_k, "a number >= 0");
  need(s.top_p > 0 && s.top_p <= 1, "top_p", s.top_p, "a number in (0, 1]");
  need(s.min_p >= 0 && s.min_p <= 1, "min_p", s.min_p, "a number in [0, 1]");
  need(s.repeat_penalty > 0 && std::isfinite(s.repeat_penalty), "repeat_penalty", s.repeat_penalty, "a number > 0");
  need(std::isfinite(s.presence_penalty), "presence_penalty", s.presence_penalty, "a finite number");
  need(std::isfinite(s.frequency_penalty), "frequency_penalty", s.frequency_penalty, "a finite number");
  need(s.repeat_last_n >= -1, "repeat_last_n", s.repeat_last_n, "a number >= -1");
  need(o.max_tokens >= -1, "max_tokens", o.max_tokens, "a number >= -1");
}

Sampling to_sampling(const SamplingOptions& s) {
  return {s.temperature, s.top_k, s.top_p, s.min_p, s.repeat_penalty, s.presence_penalty, s.frequency_penalty, s.seed};
}

bool penalises(const SamplingOptions& s) {
  return s.repeat_penalty != 1 || s.presence_penalty != 0 || s.frequency_penalty != 0;
}

}  // namespace

SessionImpl::SessionImpl(EngineImpl& engine) : engine_(engine), seq_(engine.book().open()) {
  cached_.reserve(size_t(engine.context()));
  positions_.resize(size_t(engine.options().chunk));
  outputs_.resize(size_t(engine.options().max_outputs));
}

SessionImpl::~SessionImpl() { engine_.book().close(seq_); }

int SessionImpl::length() const { return int(cached_.size()); }

void SessionImpl::truncate(int length) {
  if (length < 0 || length > this->length()) fail("cannot truncate a session of {} tokens to {}", this->length(), length);
  engine_.book().truncate(seq_, length);
  cached_.resize(size_t(length));
}

void SessionImpl::check_tokens(std::span<const Token> tokens) const {
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= engine_.vocab())
      fail("token {} at place {} is outside the vocabulary of {}", tokens[i], i, engine_.vocab());
}

int SessionImpl::reuse(std::span<const Token> text) {
  const size_t most = std::min(text.size(), cached_.size());
  const size_t same = size_t(std::mismatch(text.begin(), text.begin() + ptrdiff_t(most), cached_.begin()).first - text.begin());
  truncate(int(same));
  return int(same);
}

const float* SessionImpl::extend(std::span<const Token> tokens, int outputs) {
  const int rows = int(tokens.size()), history = length();
  for (int i = 0; i < rows; ++i) positions_[size_t(i)] = history + i;
  for (int i = 0; i < outputs; ++i) outputs_[size_t(i)] = rows - outputs + i;
  const SeqRows seq{0, rows, seq_, history, nullptr, 0};
  const StepOutputs& out = engine_.model().forward(
      {tokens, std::span(positions_).first(size_t(rows)), std::span(&seq, 1), std::span(outputs_).first(size_t(outputs))},
      engine_.kv());
  engine_.book().append(seq_, rows);
  cached_.insert(cached_.end(), tokens.begin(), tokens.end());
  return out.logits;
}

std::span<const float> SessionImpl::evaluate(std::span<const Token> tokens, int outputs) {
  check_tokens(tokens);
  if (tokens.empty()) fail("evaluate: no tokens");
  if (outputs < 0 || outputs > engine_.options().max_outputs || outputs > engine_.options().chunk || size_t(outputs) > tokens.size())
    fail("evaluate: logits of {} rows wanted, {} tokens, at most {} possible", outputs, tokens.size(),
         std::min(engine_.options().max_outputs, engine_.options().chunk));
  if (!engine_.book().can_extend(seq_, int(tokens.size())))
    fail("{} tokens do not fit behind {} in a context of {}", tokens.size(), length(), engine_.context());
  const size_t chunk = size_t(engine_.options().chunk);
  const float* logits = nullptr;
  while (!tokens.empty()) {  // the last chunk must hold all rows whose logits are wanted
    size_t n = std::min(chunk, tokens.size());
    if (n < tokens.size() && tokens.size() - n < size_t(outputs)) n = tokens.size() - size_t(outputs);
    logits = extend(tokens.first(n), n == tokens.size() ? outputs : 0);
    tokens = tokens.subspan(n);
  }
  return {logits, size_t(outputs) * size_t(engine_.vocab())};
}

bool SessionImpl::prefill(std::span<const Token> tokens, const GenerateOptions& options, int done, int total) {
  if (options.on_prefill && !options.on_prefill(done, total)) return false;
  while (!tokens.empty()) {
    const size_t n = std::min(size_t(engine_.options().chunk), tokens.size());
    extend(tokens.first(n), 0);
    tokens = tokens.subspan(n);
    done += int(n);
    if (options.on_prefill && !options.on_prefill(done, total)) return false;
  }
  return true;
}

Token SessionImpl::choose(const float* logits, const Sampling& sampling, std::span<const TokenBias> bias,
                          const PenaltyWindow& window) {
  const ChooseRow row{logits, uint64_t(length()), &sampling, bias, window.counts()};
  Token token = kNoToken;
  engine_.device().choose({&token, std::span(&row, 1), engine_.vocab()});
  return token;
}

void SessionImpl::decode(const GenerateOptions& options, GenerateResult& result, Token pending, PenaltyWindow& window) {
  const Sampling sampling = to_sampling(options.sampling);
  std::vector<TokenBias> bias;
  for (const auto& [token, value] : options.sampling.logit_bias) bias.push_back({token, value});
  Detokenizer detokenizer(engine_.tokenizer(), options.show_special);
  StopWatch stops(options.stop);
  const auto show = [&](const std::string& text) {
    result.text += text;
    return text.empty() || !options.on_text || options.on_text(text);
  };
  const int limit = options.max_tokens < 0 ? engine_.context() : options.max_tokens;
  result.tokens.reserve(size_t(limit));
  result.reason = FinishReason::kLength;
  while (int(result.tokens.size()) < limit) {
    if (!engine_.book().can_extend(seq_, 1)) { result.reason = FinishReason::kContext; break; }
    const Token token = choose(extend(std::span(&pending, 1), 1), sampling, bias, window);
    if (engine_.is_end(token) && !options.ignore_end) { result.reason = FinishReason::kEnd; break; }
    result.tokens.push_back(token);
    window.push(token);
    pending = token;
    if (!show(stops.push(detokenizer.push(token)))) { result.reason = FinishReason::kCancelled; return; }
    if (stops.stopped()) { result.reason = FinishReason::kStop; return; }
  }
  if (!show(stops.push(detokenizer.finish())) || !show(stops.finish())) result.reason = FinishReason::kCancelled;
}

GenerateResult SessionImpl::generate(std::span<const Token> prompt, const GenerateOptions& options) {
  check(options);
  check_tokens(prompt);
  if (prompt.empty()) fail("the prompt is empty: give at least one token");
  if (int64_t(prompt.size()) > engine_.context())
    fail("the prompt has {} tokens, the context holds {}: shorten it or ask for a larger context", prompt.size(), engine_.context());
  GenerateResult result;
  const double start = now_ms();
  const auto before_last = prompt.first(prompt.size() - 1);  // the last token of the prompt is pending
  result.timings.cached_tokens = reuse(before_last);
  const auto rest = before_last.subspan(size_t(result.timings.cached_tokens));
  const bool finished = prefill(rest, options, result.timings.cached_tokens, int(prompt.size()) - 1);
  const double prompt_end = now_ms();
  result.timings.prompt_ms = prompt_end - start;
  result.timings.prompt_tokens = int(rest.size());
  if (!finished) {
    result.reason = FinishReason::kCancelled;
    return result;
  }
  PenaltyWindow window(engine_.vocab(), penalises(options.sampling) ? options.sampling.repeat_last_n : 0);
  for (Token t : prompt) window.push(t);
  decode(options, result, prompt.back(), window);
  result.timings.decode_ms = now_ms() - prompt_end;
  result.timings.generated_tokens = int(result.tokens.size());
  return result;
}

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEnd: return "end";
    case FinishReason::kLength: return "length";
    case FinishReason::kStop: return "stop";
    case FinishReason::kContext: return "context";
    case FinishReason::kCancelled: return "cancelled";
  }
  return "?";
}

}  // namespace sx
