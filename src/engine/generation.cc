#include "engine/generation.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "tensor/finite.h"

namespace sx {
namespace {

constexpr size_t kUsualBytes = 8;  // of a token's text; more is taken if it is longer

void check(const GenerateOptions& o, int vocab) {
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
  for (const auto& [token, value] : s.logit_bias) {
    if (token < 0 || token >= vocab) fail("logit_bias: token {} is outside the vocabulary of {}", token, vocab);
    if (!std::isfinite(value)) fail("logit_bias of token {} is {}, expected a finite number, e.g. -100 to forbid it", token, value);
  }
  need(o.max_tokens >= -1, "max_tokens", o.max_tokens, "a number >= -1");
  need(o.draft_nodes >= -1, "draft_nodes", o.draft_nodes, "a number >= -1");
  need(o.draft_depth >= -1, "draft_depth", o.draft_depth, "a number >= -1");
}

Sampling to_sampling(const SamplingOptions& s) {
  return {s.temperature, s.top_k, s.top_p, s.min_p, s.repeat_penalty, s.presence_penalty, s.frequency_penalty, s.seed};
}

bool penalises(const SamplingOptions& s) {
  return s.repeat_penalty != 1 || s.presence_penalty != 0 || s.frequency_penalty != 0;
}

constexpr const char* kOff = "off";

// A request that is not to speculate needs no preset of that name.
Speculation& spec_of(const GenerateOptions& o, EngineImpl& engine) { return engine.speculation(o.preset == kOff ? "" : o.preset); }

SessionImpl& session_of(const Request& request, EngineImpl& engine) {
  auto* session = dynamic_cast<SessionImpl*>(request.session);
  if (!session || &session->engine() != &engine) fail("a request's session is not one of this engine");
  if (!request.options) fail("a request has no options");
  check(*request.options, engine.vocab());
  session->check_tokens(request.prompt);
  if (request.prompt.empty()) fail("the prompt is empty: give at least one token");
  if (int64_t(request.prompt.size()) > engine.context())
    fail("the prompt has {} tokens, the context holds {}: shorten it or ask for a larger context", request.prompt.size(),
         engine.context());
  return *session;
}

}  // namespace

Generation::Generation(const Request& request, EngineImpl& engine)
    : session(session_of(request, engine)), options(*request.options), spec(spec_of(options, engine)), sampling(to_sampling(options.sampling)),
      window(engine.vocab(), penalises(options.sampling) ? std::min(options.sampling.repeat_last_n, engine.context()) : 0, kMaxTreeNodes),
      engine_(engine), prompt_(request.prompt), detokenizer_(engine.codec(), options.show_special, TextPlace::kBehind), stops_(options.stop),
      limit_(options.max_tokens < 0 ? engine.context() : options.max_tokens) {
  for (const auto& [token, value] : options.sampling.logit_bias) bias.push_back({token, value});
  drafts_ = spec.drafter() && options.speculate && options.preset != kOff;
  most_nodes = options.draft_nodes < 0 ? spec.nodes() : std::min(spec.nodes(), options.draft_nodes);
  most_depth = options.draft_depth < 0 ? spec.depth() : std::min(spec.depth(), options.draft_depth);
  tree = spec.tree(session.seq());
  distributions = spec.distributions(session.seq());
  const size_t deepest = size_t(spec.depth());
  result.path.reserve(size_t(spec.nodes()) + 1);
  broken.reserve(size_t(tree->capacity()));
  parents_.reserve(options.on_round ? size_t(spec.nodes()) + 1 : 0);
  result_.tokens.reserve(size_t(std::min(limit_, engine.context())) + 1);
  result_.text.reserve(size_t(std::min(limit_, engine.context())) * kUsualBytes);
  result_.spec.histogram.assign(deepest + 1, 0);
  result_.spec.tried_at_depth.assign(deepest, 0);
  result_.spec.accepted_at_depth.assign(deepest, 0);
  result_.reason = FinishReason::kLength;
  if (!options.grammar.empty()) grammar = std::make_unique<TreeGrammar>(engine.grammars().get(options.grammar), options.cancelled);
  start_ = now_ms();
  result_.timings.cached_tokens = session.reuse(prompt_.first(scored() ? 0 : prompt_.size() - 1), drafter());
  go_on();
}

Generation::~Generation() { session.settle(); }

void Generation::end(FinishReason reason) {
  result_.reason = reason;
  done_ = true;
}

void Generation::fail(const std::string& why) {
  error_ = why;
  end(FinishReason::kCancelled);
}

void Generation::fail_at(size_t position) {
  models_fault_ = true;
  fail(broken_logits(position));
}

bool Generation::cancelled() {
  if (!done_ && options.cancelled && options.cancelled()) end(FinishReason::kCancelled);
  return done_;
}

bool Generation::exhausted() {
  if (!done_ && remaining() <= 0) end(FinishReason::kLength);
  if (!done_ && !engine_.sequences().can_extend(session.seq(), 1)) end(FinishReason::kContext);
  return done_;
}

std::span<const Token> Generation::waiting() const {
  const auto before_last = prompt_.first(prompt_.size() - 1);
  return decoding_ || done_ ? std::span<const Token>{} : before_last.subspan(size_t(session.length()));
}

void Generation::score(int rows, int row) {
  const size_t vocab = size_t(engine_.vocab()), next = size_t(session.length()) + 1;
  const int most = engine_.model().options().max_outputs;
  logits_.resize(vocab);
  const float* logits = nullptr;
  for (int i = 0; i < rows; ++i) {
    if (i % most == 0) logits = engine_.model().more_logits(row + i, std::min(most, rows - i));
    engine_.device().download(logits_.data(), logits + size_t(i % most) * vocab, vocab);
    if (broken_prompt_ == 0 && is_broken_row(logits_.data(), vocab)) broken_prompt_ = next + size_t(i);
    if (broken_prompt_ == 0) options.on_prompt_token({prompt_[next + size_t(i)], 0, logits_});
  }
}

void Generation::prompted(int rows, const StepOutputs& outputs, int row) {
  session.append(waiting().first(size_t(rows)), outputs, row, drafter());
  if (broken_prompt_ > 0) fail_at(broken_prompt_);
  go_on();
}

void Generation::go_on() {
  if (options.on_prefill) options.on_prefill(session.length(), int(prompt_.size()) - 1);
  const bool finished = !cancelled() && waiting().empty();
  if (!finished && !done_) return;
  if (Drafter* d = drafter(); d && finished && !spec.config().lazy)
    while (!d->prefill(session.seq(), session.tokens()) && !cancelled()) {}
  engine_.device().wait();
  prompt_end_ = now_ms();
  result_.timings.prompt_ms = prompt_end_ - start_;
  result_.timings.prompt_tokens = session.length() - result_.timings.cached_tokens;
  if (Drafter* d = drafter()) d->take_forward_ms(), d->take_cache_ms();  // not of any round
  if (done_) return;
  decoding_ = true;
  session.tokens().push_back(prompt_.back());
  for (Token t : prompt_) window.push(t);
}

void Generation::catch_up() {
  Drafter* d = drafter();
  const double start = now_ms();
  const int before = d->behind(session.seq(), session.tokens());
  d->prefill(session.seq(), std::span(session.tokens()).first(session.tokens().size() - 1));
  engine_.device().wait();
  d->take_forward_ms(), d->take_cache_ms();
  const double ms = now_ms() - start;
  result_.timings.draft_prompt_ms += ms;
  spec.observe_reading(before - d->behind(session.seq(), session.tokens()), ms);
}

bool Generation::show(const std::string& text) {
  result_.text += text;
  if (text.empty()) return true;
  if (options.on_text) options.on_text(text);
  return !options.cancelled || !options.cancelled();
}

// What was chosen at a node where the grammar cannot be followed is not of the text: here plain decoding would have failed, too.
bool Generation::failed(NodeId node) {
  const TreeGrammar::Failure* failure = grammar->failure(node);
  if (!failure) return false;
  if (failure->why.empty()) end(FinishReason::kCancelled);
  else fail(failure->why);
  return true;
}

int Generation::take(const float* logits) {
  const size_t vocab = size_t(engine_.vocab());
  const int path = int(result.path.size());
  for (int k = 0; k < path; ++k) {
    if (broken[size_t(result.path[size_t(k)])]) {
      fail_at(session.tokens().size());
      return k + 1;
    }
    const bool guessed = k + 1 < path;
    if (grammar && failed(result.path[size_t(k)])) return k;
    const Token token = guessed ? tree->token(result.path[size_t(k + 1)]) : result.next;
    const bool wanted = options.on_logits || (options.on_token && options.token_logits);
    if (wanted) {
      logits_.resize(vocab);
      engine_.device().download(logits_.data(), logits + size_t(result.path[size_t(k)]) * vocab, vocab);
    }
    if (options.on_logits) options.on_logits(logits_);
    const auto& stops = options.stop_tokens;
    if ((engine_.codec().is_end(token) && (grammar || !options.ignore_end)) || std::find(stops.begin(), stops.end(), token) != stops.end()) {
      end(FinishReason::kEnd);
      return k + 1;
    }
    result_.tokens.push_back(token);
    session.tokens().push_back(token);
    window.push(token);
    if (grammar) grammar->accept(token);
    if (options.on_token) {
      const int depth = guessed ? tree->depth(result.path[size_t(k + 1)]) : 0;
      options.on_token({token, depth, options.token_logits ? std::span<const float>(logits_) : std::span<const float>{}});
    }
    if (!show(stops_.push(detokenizer_.push(token)))) end(FinishReason::kCancelled);
    else if (stops_.stopped()) end(FinishReason::kStop);
    else if (grammar && grammar->done()) end(FinishReason::kEnd);  // whatever the model would say, nothing may follow
    else if (remaining() <= 0) end(FinishReason::kLength);
    if (done_) return k + 1;
  }
  return path;
}

void Generation::count(int proposed, int committed, const PhaseTimes& times, double plain_ms) {
  SpecStats& s = result_.spec;
  const int verified = tree->drafted(), accepted = std::min(committed, int(result.path.size()) - 1);
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
  RoundInfo info{proposed, verified, accepted, tree->tokens(), parents_, std::span(result.path).first(size_t(accepted) + 1), times, {}, 0,
                 plain_ms, timings()};
  if (const Drafter* d = drafter()) info.cells = d->working_cells(session.seq(), info.refreshes);
  options.on_round(info);
}

void Generation::add_times(const PhaseTimes& t) {
  PhaseTimes& sum = result_.spec.times;
  sum.draft += t.draft, sum.verify += t.verify, sum.accept += t.accept, sum.commit += t.commit, sum.score += t.score, sum.host += t.host;
}

Timings Generation::timings() const {
  Timings t = result_.timings;
  if (prompt_end_ > 0) t.decode_ms = now_ms() - prompt_end_ - t.draft_prompt_ms;
  t.generated_tokens = int(result_.tokens.size());
  return t;
}

GenerateResult Generation::finish() {
  const bool whole = result_.reason != FinishReason::kCancelled && result_.reason != FinishReason::kStop;
  if (whole && (!show(stops_.push(detokenizer_.finish())) || !show(stops_.finish()))) result_.reason = FinishReason::kCancelled;
  result_.timings = timings();
  if (Drafter* d = drafter()) d->remember(session.tokens(), int(result_.tokens.size()));
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
