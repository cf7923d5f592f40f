#include "engine/generation.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"

namespace sx {
namespace {

constexpr size_t kUsualBytes = 8;  // of a token's text; more is taken if it is longer

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

SessionImpl& session_of(const Request& request, EngineImpl& engine) {
  auto* session = dynamic_cast<SessionImpl*>(request.session);
  if (!session || &session->engine() != &engine) fail("a request's session is not one of this engine");
  if (!request.options) fail("a request has no options");
  check(*request.options);
  session->check_tokens(request.prompt);
  if (request.prompt.empty()) fail("the prompt is empty: give at least one token");
  if (int64_t(request.prompt.size()) > engine.context())
    fail("the prompt has {} tokens, the context holds {}: shorten it or ask for a larger context", request.prompt.size(),
         engine.context());
  return *session;
}

}  // namespace

Generation::Generation(const Request& request, EngineImpl& engine)
    : session(session_of(request, engine)), options(*request.options), sampling(to_sampling(options.sampling)),
      window(engine.vocab(), penalises(options.sampling) ? options.sampling.repeat_last_n : 0, kMaxTreeNodes),
      engine_(engine), prompt_(request.prompt), detokenizer_(engine.tokenizer(), options.show_special), stops_(options.stop),
      limit_(options.max_tokens < 0 ? engine.context() : options.max_tokens) {
  for (const auto& [token, value] : options.sampling.logit_bias) bias.push_back({token, value});
  const Speculation& spec = engine.speculation();
  const size_t deepest = size_t(spec.depth());
  verdict.path.reserve(size_t(spec.nodes()) + 1);
  parents_.reserve(options.on_round ? size_t(spec.nodes()) + 1 : 0);
  result_.tokens.reserve(size_t(std::min(limit_, engine.context())) + 1);
  result_.text.reserve(size_t(std::min(limit_, engine.context())) * kUsualBytes);
  result_.spec.histogram.assign(deepest + 1, 0);
  result_.spec.tried_at_depth.assign(deepest, 0);
  result_.spec.accepted_at_depth.assign(deepest, 0);
  result_.reason = FinishReason::kLength;
}

Generation::~Generation() { session.settle(); }

void Generation::end(FinishReason reason) {
  result_.reason = reason;
  done_ = true;
}

bool Generation::cancelled() {
  if (!done_ && options.cancelled && options.cancelled()) end(FinishReason::kCancelled);
  return done_;
}

bool Generation::exhausted() {
  if (!done_ && remaining() <= 0) end(FinishReason::kLength);
  if (!done_ && !engine_.book().can_extend(session.seq(), 1)) end(FinishReason::kContext);
  return done_;
}

bool Generation::chunks(std::span<const Token> tokens, int done, int total) {
  const auto go_on = [&] { return (!options.on_prefill || options.on_prefill(done, total)) && !cancelled(); };
  if (!go_on()) return false;
  while (!tokens.empty()) {
    const size_t n = std::min(size_t(engine_.options().chunk), tokens.size());
    session.extend(tokens.first(n), 0);
    tokens = tokens.subspan(n);
    done += int(n);
    if (!go_on()) return false;
  }
  Drafter* drafter = options.speculate ? engine_.speculation().drafter() : nullptr;
  while (drafter && !drafter->prefill(session.seq(), session.tokens()))
    if (!go_on()) return false;
  return true;
}

void Generation::prefill() {
  start_ = now_ms();
  const auto before_last = prompt_.first(prompt_.size() - 1);  // the last token of the prompt is pending
  result_.timings.cached_tokens = session.reuse(before_last);
  const auto rest = before_last.subspan(size_t(result_.timings.cached_tokens));
  const bool finished = chunks(rest, result_.timings.cached_tokens, int(prompt_.size()) - 1);
  if (Drafter* drafter = engine_.speculation().drafter()) drafter->take_forward_ms(), drafter->take_cache_ms();  // not of any round
  engine_.device().wait();
  prompt_end_ = now_ms();
  result_.timings.prompt_ms = prompt_end_ - start_;
  result_.timings.prompt_tokens = int(rest.size());
  if (!finished) return end(FinishReason::kCancelled);
  session.tokens().push_back(prompt_.back());
  for (Token t : prompt_) window.push(t);
  tree = engine_.speculation().tree(session.seq());
  laws = engine_.speculation().laws(session.seq());
}

bool Generation::show(const std::string& text) {
  result_.text += text;
  return text.empty() || !options.on_text || options.on_text(text);
}

int Generation::take(const float* logits) {
  const size_t vocab = size_t(engine_.vocab());
  const int path = int(verdict.path.size());
  for (int k = 0; k < path; ++k) {
    const Token token = k + 1 < path ? tree->token(verdict.path[size_t(k + 1)]) : verdict.next;
    if (options.on_logits) {
      logits_.resize(vocab);
      engine_.device().download(logits_.data(), logits + size_t(verdict.path[size_t(k)]) * vocab, vocab);
      options.on_logits(logits_);
    }
    if (engine_.is_end(token) && !options.ignore_end) {
      end(FinishReason::kEnd);
      return k + 1;
    }
    result_.tokens.push_back(token);
    session.tokens().push_back(token);
    window.push(token);
    if (!show(stops_.push(detokenizer_.push(token)))) end(FinishReason::kCancelled);
    else if (stops_.stopped()) end(FinishReason::kStop);
    else if (remaining() <= 0) end(FinishReason::kLength);
    if (done_) return k + 1;
  }
  return path;
}

void Generation::count(int proposed, int committed, const PhaseTimes& times) {
  SpecStats& s = result_.spec;
  const int verified = tree->drafted(), accepted = std::min(committed, int(verdict.path.size()) - 1);
  ++s.rounds;
  s.drafted += proposed;
  s.verified += verified;
  s.accepted += accepted;
  if (verified > 0) {
    ++s.drafted_rounds;
    ++s.histogram[size_t(accepted)];
    const size_t deep = size_t(tree->max_depth());
    for (size_t d = 0; d < deep; ++d) ++s.tried_at_depth[d];
    for (size_t d = 0; d < size_t(accepted); ++d) ++s.accepted_at_depth[d];
  }
  add_times(times);
  if (!options.on_round) return;
  parents_.clear();
  for (NodeId n = 0; n < tree->size(); ++n) parents_.push_back(tree->parent(n));
  RoundInfo info{proposed, verified, accepted, tree->tokens(), parents_, std::span(verdict.path).first(size_t(accepted) + 1), times, {}, 0};
  if (const Drafter* drafter = engine_.speculation().drafter()) info.cells = drafter->working_cells(session.seq(), info.refreshes);
  options.on_round(info);
}

void Generation::add_times(const PhaseTimes& t) {
  PhaseTimes& sum = result_.spec.times;
  sum.draft += t.draft, sum.verify += t.verify, sum.judge += t.judge, sum.commit += t.commit, sum.score += t.score, sum.host += t.host;
}

GenerateResult Generation::finish() {
  const bool whole = result_.reason != FinishReason::kCancelled && result_.reason != FinishReason::kStop;
  if (whole && (!show(stops_.push(detokenizer_.finish())) || !show(stops_.finish()))) result_.reason = FinishReason::kCancelled;
  if (prompt_end_ > 0) result_.timings.decode_ms = now_ms() - prompt_end_;
  result_.timings.generated_tokens = int(result_.tokens.size());
  return std::move(result_);
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
