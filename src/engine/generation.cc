#include "engine/generation.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "backend/kv_stream.h"
#include "base/clock.h"
#include "base/error.h"
#include "tensor/finite.h"

namespace sx {
namespace {

constexpr float kNever = -1e9f;    // the bias of tokens that must not be chosen yet
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
    if (!std::isfinite(value))
      fail("logit_bias of token {} is {}, expected a finite number, e.g. -100 to forbid it", token, value);
  }
  need(o.max_tokens >= -1, "max_tokens", o.max_tokens, "a number >= -1");
  need(o.min_tokens >= 0, "min_tokens", o.min_tokens, "a number >= 0");
  need(o.draft_nodes >= -1, "draft_nodes", o.draft_nodes, "a number >= -1");
  need(o.draft_depth >= -1, "draft_depth", o.draft_depth, "a number >= -1");
}

Sampling to_sampling(const SamplingOptions& s) {
  return {.temperature = s.temperature,
          .top_k = s.top_k,
          .top_p = s.top_p,
          .min_p = s.min_p,
          .repeat_penalty = s.repeat_penalty,
          .presence_penalty = s.presence_penalty,
          .frequency_penalty = s.frequency_penalty,
          .seed = s.seed};
}

bool penalises(const SamplingOptions& s) {
  return s.repeat_penalty != 1 || s.presence_penalty != 0 || s.frequency_penalty != 0;
}

}  // namespace

void check_request(const Request& request, const EngineParts& engine) {
  if (!request.options) fail("a request has no options");
  check(*request.options, engine.vocab());
  check_tokens(request.prompt, engine.vocab());
  if (request.prompt.empty()) fail("the prompt is empty: give at least one token");
  if (int64_t(request.prompt.size()) > engine.context())
    fail("the prompt has {} tokens, the context holds {}: shorten it or ask for a larger context",
         request.prompt.size(), engine.context());
}

Generation::Generation(const Request& request, const EngineParts& engine, Parts parts)
    : engine_(engine),
      text_(*parts.text),
      options_(*request.options),
      spec_(*parts.spec),
      prompt_(request.prompt),
      sampling_(to_sampling(options_.sampling)),
      window_(engine.vocab(),
              penalises(options_.sampling) ? std::min(options_.sampling.repeat_last_n, engine.context()) : 0,
              kMaxTreeNodes),
      grammar_(std::move(parts.grammar)),
      detokenizer_(*engine.tokenizer, options_.show_special, TextPlace::kBehind),
      stops_(options_.stop),
      limit_(options_.max_tokens < 0 ? engine.context() : options_.max_tokens) {
  for (const auto& [token, value] : options_.sampling.logit_bias) bias_.push_back({token, value});
  if (options_.min_tokens > 0) forbid_ends();
  drafts_ = spec_.drafter() && options_.speculate && options_.preset != kNoSpeculation;
  most_nodes_ = options_.draft_nodes < 0 ? spec_.nodes() : std::min(spec_.nodes(), options_.draft_nodes);
  most_depth_ = options_.draft_depth < 0 ? spec_.depth() : std::min(spec_.depth(), options_.draft_depth);
  const size_t deepest = size_t(spec_.depth());
  parents_.reserve(options_.on_round ? size_t(spec_.nodes()) + 1 : 0);
  result_.tokens.reserve(size_t(std::min(limit_, engine.context())) + 1);
  result_.text.reserve(size_t(std::min(limit_, engine.context())) * kUsualBytes);
  result_.spec.histogram.assign(deepest + 1, 0);
  result_.spec.tried_at_depth.assign(deepest, 0);
  result_.spec.accepted_at_depth.assign(deepest, 0);
  result_.reason = FinishReason::kLength;
  start_ = now_ms();
  // Preset auto works without its head, too: a text that is in the cache is not run again for that.
  const int again = spec_.planner().drafts_unread() ? kMaxChain : engine_.context();
  result_.timings.cached_tokens = text_.reuse(prompt_.first(scored() ? 0 : prompt_.size() - 1), drafter(), again);
  along_ = reads_along();
  begin_decoding_if_prompt_done();
}

// A head that follows the larger part of the text already goes on: later requests of the session want that.
bool Generation::reads_along() const {
  const int known = text_.length(), rest = int(waiting().size());
  return known > rest || spec_.planner().reads_along(rest, std::min(limit_, engine_.context() - int(prompt_.size())));
}

Generation::~Generation() {
  try {
    text_.drop_pending();
  } catch (const std::exception&) {}  // a rank is lost, and with it the job
}

void Generation::forbid_ends() {
  std::vector<bool> ends(size_t(engine_.vocab()));
  for (Token token = 0; token < engine_.vocab(); ++token) ends[size_t(token)] = engine_.tokenizer->is_end(token);
  for (const Token token : options_.stop_tokens)
    if (token >= 0 && token < engine_.vocab()) ends[size_t(token)] = true;
  std::ranges::copy_if(bias_, std::back_inserter(first_bias_), [&](const auto& b) { return !ends[size_t(b.token)]; });
  for (Token token = 0; token < engine_.vocab(); ++token)
    if (ends[size_t(token)]) first_bias_.push_back({token, kNever});
}

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

bool Generation::poll_cancelled() {
  if (!done_ && options_.cancelled && options_.cancelled()) end(FinishReason::kCancelled);
  return done_;
}

// Room is made by texts at rest first, then by this request's own draft.
void Generation::hold_memory(int rows) {
  if (done_) return;
  const int length = text_.length();
  const auto end = [&] { return length + (rows > 0 ? rows : (drafter() ? most_nodes_ : 0) + 1); };
  const auto make_room = [&] { return engine_.make_room && *engine_.make_room && (*engine_.make_room)(); };
  const auto give_up_draft = [&] {
    Drafter* const d = drafter();
    if (d) d->truncate(text_.seq(), 0);
    drafts_ = false;
    return d != nullptr;
  };
  while (!hold_cells(*engine_.kv, text_.seq(), length, end()))
    if (!make_room() && !give_up_draft()) {
      no_memory_ = true;
      return fail(
          fmt::format("the device's memory is full: {} tokens of this text are in it, and beside other texts "
                      "there is no room for more",
                      length));
    }
  Drafter* d = drafter();
  const bool reads = decoding_ || (d && d->reads_target()) || !spec_.config().lazy;
  if (d && reads && !d->hold(text_.seq(), end())) give_up_draft();
}

void Generation::end_if_exhausted() {
  if (!done_ && remaining() <= 0) end(FinishReason::kLength);
  if (!done_ && !engine_.sequences->can_extend(text_.seq(), 1)) end(FinishReason::kContext);
}

std::span<const Token> Generation::waiting() const {
  const auto before_last = prompt_.first(prompt_.size() - 1);
  return decoding_ || done_ ? std::span<const Token>{} : before_last.subspan(size_t(text_.length()));
}

void Generation::score(int rows, int row) {
  const size_t vocab = size_t(engine_.vocab()), next = size_t(text_.length()) + 1;
  const int most = engine_.model->options().max_outputs;
  logits_.resize(vocab);
  const float* logits = nullptr;
  for (int i = 0; i < rows; ++i) {
    if (i % most == 0) logits = engine_.model->more_logits(row + i, std::min(most, rows - i));
    engine_.backend->download(logits_.data(), logits + size_t(i % most) * vocab, vocab);
    if (broken_prompt_ == 0 && is_broken_row(logits_.data(), vocab)) broken_prompt_ = next + size_t(i);
    if (broken_prompt_ == 0) options_.on_prompt_token({prompt_[next + size_t(i)], 0, logits_});
  }
}

void Generation::finish_piece(int rows, const StepOutputs& outputs, int row) {
  Drafter* const d = along_ ? drafter() : nullptr;
  // Short pieces cost more for each token; a device is only told here what it does later.
  const bool timed = d && d->reads_target() && d->follows(text_.seq(), text_.length()) && rows >= kMaxChain &&
                     !engine_.backend->traits().records_steps;
  const double start = now_ms();
  text_.append(waiting().first(size_t(rows)), outputs, row, d ? &spec_ : nullptr);
  if (timed) spec_.planner().observe_along(rows, now_ms() - start);
  if (broken_prompt_ > 0) fail_at(broken_prompt_);
  begin_decoding_if_prompt_done();
}

// Tells how far the prompt is; begins to decode when all of it is in the cache.
void Generation::begin_decoding_if_prompt_done() {
  if (options_.on_prefill) options_.on_prefill(text_.length(), int(prompt_.size()) - 1);
  const bool finished = !poll_cancelled() && waiting().empty();
  if (!finished && !done_) return;
  const bool reads = finished && drafter() && !spec_.config().lazy;
  if (reads) hold_memory();
  if (Drafter* d = drafter(); d && reads && !done_)
    while (!d->prefill(text_.seq(), text_.tokens()) && !poll_cancelled()) {}
  engine_.backend->wait();
  prompt_end_ = now_ms();
  result_.timings.prompt_ms = prompt_end_ - start_;
  result_.timings.prompt_tokens = text_.length() - result_.timings.cached_tokens;
  if (Drafter* d = drafter()) d->take_times();  // not of any round
  if (done_) return;
  decoding_ = true;
  text_.tokens().push_back(prompt_.back());
  for (Token t : prompt_) window_.push(t);
}

double Generation::catch_up() {
  Drafter* d = drafter();
  const double start = now_ms();
  d->prefill(text_.seq(), std::span(text_.tokens()).first(text_.tokens().size() - 1));
  engine_.backend->wait();
  d->take_times();
  const double ms = now_ms() - start;
  result_.timings.draft_prompt_ms += ms;
  return ms;
}

TreeLimits Generation::tree_limits(int share) const {
  const int room = grammar_ && grammar_->slow() ? 0 : engine_.context() - text_.length() - 1;
  // One bias is that of a whole tree.
  const int alike = may_end() ? room : options_.min_tokens - made() - 1;
  return {.nodes = std::min({most_nodes_, share, room}),
          .depth = std::min({most_depth_, remaining() - 1, room, alike})};
}

// What a grammar leaves no choice about needs no drafter. The bytes are certain, how the model spells them is not.
void Generation::begin_tree(RoundSlot& slot, int share) {
  slot.tree = spec_.tree(text_.seq());
  slot.distributions = spec_.distributions(text_.seq());
  slot.history = text_.length();
  slot.drafted = slot.committed = 0;
  slot.drafting = slot.looking = false;
  slot.draft_ms = 0;
  slot.foreseen = kNoToken;
  slot.whole = true;
  slot.decision = {};
  slot.tree->reset(text_.tokens().back());
  if (!grammar_) return;
  grammar_->begin();
  const TreeLimits limits = tree_limits(share);
  const int most = std::min(limits.nodes, limits.depth);
  if (!drafter() || slot.distributions || most <= 0) return;
  NodeId last = 0;
  for (Token token : grammar_->forced_tokens(size_t(most))) last = slot.tree->add(last, token, 0);
  grammar_->prune(*slot.tree);
  slot.drafted = slot.tree->drafted();
}

DraftTask Generation::draft_task(const RoundSlot& slot, int share) const {
  return {.seq = text_.seq(),
          .text = text_.tokens(),
          .sampling = &sampling_,
          .bias = bias(),
          .counts = window_.counts(),
          .limits = tree_limits(share),
          .tree = slot.tree,
          .distributions = slot.distributions,
          .grammar = grammar_.get()};
}

// Rules that rely on how a tree was drawn drew it from what the grammar allows.
void Generation::prune(RoundSlot& slot) {
  if (grammar_ && !slot.distributions) grammar_->prune(*slot.tree);
}

void Generation::accept(RoundSlot& slot, const float* logits, MatchWalks& walks) {
  slot.broken.assign(size_t(slot.tree->size()), 0);
  const AcceptArgs args{.tree = slot.tree,
                        .logits = logits,
                        .vocab = engine_.vocab(),
                        .position = text_.tokens().size(),
                        .sampling = &sampling_,
                        .bias = bias(),
                        .window = &window_,
                        .draft_probs = slot.distributions,
                        .grammar = grammar_.get(),
                        .broken = slot.broken.data()};
  Acceptance& rule = spec_.acceptance(drafter() != nullptr);
  if (rule.matches() && !grammar_) walks.add(args, slot.result);
  else rule.accept(args, slot.result);
}

bool Generation::show(const std::string& text) {
  result_.text += text;
  if (text.empty()) return true;
  if (options_.on_text) options_.on_text(text);
  return !options_.cancelled || !options_.cancelled();
}

// What was chosen at a node where the grammar cannot be followed is not of the text: here plain decoding would have
// failed, too.
bool Generation::grammar_failed(NodeId node) {
  const TreeGrammar::Failure* failure = grammar_->failure(node);
  if (!failure) return false;
  no_memory_ = failure->no_memory;
  if (failure->why.empty()) end(FinishReason::kCancelled);
  else fail(failure->why);
  return true;
}

int Generation::take(const RoundSlot& slot, const float* logits) {
  const size_t vocab = size_t(engine_.vocab());
  const AcceptResult& result = slot.result;
  const int path = int(result.path.size());
  for (int k = 0; k < path; ++k) {
    if (slot.broken[size_t(result.path[size_t(k)])]) {
      fail_at(text_.tokens().size());
      return k + 1;
    }
    const bool guessed = k + 1 < path;
    if (grammar_ && grammar_failed(result.path[size_t(k)])) return k;
    const Token token = guessed ? slot.tree->token(result.path[size_t(k + 1)]) : result.next;
    const bool wanted = options_.on_logits || (options_.on_token && options_.token_logits);
    if (wanted) {
      logits_.resize(vocab);
      engine_.backend->download(logits_.data(), logits + size_t(result.path[size_t(k)]) * vocab, vocab);
    }
    if (options_.on_logits) options_.on_logits(logits_);
    const auto& stops = options_.stop_tokens;
    if ((engine_.tokenizer->is_end(token) && (grammar_ || !options_.ignore_end)) ||
        std::find(stops.begin(), stops.end(), token) != stops.end()) {
      end(FinishReason::kEnd);
      return k + 1;
    }
    result_.tokens.push_back(token);
    text_.tokens().push_back(token);
    window_.push(token);
    if (grammar_) grammar_->accept(token);
    if (options_.on_token) {
      const int depth = guessed ? slot.tree->depth(result.path[size_t(k + 1)]) : 0;
      options_.on_token(
          {token, depth, options_.token_logits ? std::span<const float>(logits_) : std::span<const float>{}});
    }
    if (!show(stops_.push(detokenizer_.push(token)))) end(FinishReason::kCancelled);
    else if (stops_.stopped()) end(FinishReason::kStop);
    else if (grammar_ && grammar_->done()) end(FinishReason::kEnd);  // whatever the model would say, nothing may follow
    else if (remaining() <= 0) end(FinishReason::kLength);
    if (done_) return k + 1;
  }
  return path;
}

void Generation::count(const RoundSlot& slot, const PhaseTimes& times, double plain_ms) {
  SpecStats& s = result_.spec;
  const int verified = slot.tree->drafted(), accepted = std::min(slot.committed, int(slot.result.path.size()) - 1);
  ++s.rounds;
  s.drafted += slot.drafted;
  s.verified += verified;
  s.accepted += accepted;
  if (verified > 0) {
    ++s.drafted_rounds;
    ++s.histogram[size_t(accepted)];
    const size_t deep = size_t(slot.tree->max_depth());
    for (size_t d = 0; d < deep; ++d) ++s.tried_at_depth[d];
    for (size_t d = 0; d < size_t(accepted); ++d) ++s.accepted_at_depth[d];
  }
  s.times.draft += times.draft;
  s.times.verify += times.verify;
  s.times.accept += times.accept;
  s.times.commit += times.commit;
  s.times.score += times.score;
  s.times.host += times.host;
  if (options_.on_round) tell_round(slot, accepted, times, plain_ms);
}

void Generation::tell_round(const RoundSlot& slot, int accepted, const PhaseTimes& times, double plain_ms) {
  parents_.clear();
  for (NodeId n = 0; n < slot.tree->size(); ++n) parents_.push_back(slot.tree->parent(n));
  RoundInfo info{.drafted = slot.drafted,
                 .verified = slot.tree->drafted(),
                 .accepted = accepted,
                 .tokens = slot.tree->tokens(),
                 .parents = parents_,
                 .path = std::span(slot.result.path).first(size_t(accepted) + 1),
                 .times = times,
                 .cells = {},
                 .plain_ms = plain_ms,
                 .timings = timings(),
                 .decision = {.kind = slot.decision.why[0] ? decision_name(slot.decision.kind) : "",
                              .why = slot.decision.why,
                              .levels = slot.decision.depth,
                              .tokens = slot.decision.tokens,
                              .steps = slot.decision.time}};
  if (Drafter* d = drafter()) info.cells = d->state().working_cells(text_.seq(), info.refreshes);
  options_.on_round(info);
}

Timings Generation::timings() const {
  Timings t = result_.timings;
  if (prompt_end_ > 0) t.decode_ms = now_ms() - prompt_end_ - t.draft_prompt_ms;
  t.generated_tokens = int(result_.tokens.size());
  return t;
}

GenerateResult Generation::finish() {
  const bool whole = result_.reason != FinishReason::kCancelled && result_.reason != FinishReason::kStop;
  if (whole && (!show(stops_.push(detokenizer_.finish())) || !show(stops_.finish())))
    result_.reason = FinishReason::kCancelled;
  result_.timings = timings();
  if (Drafter* d = drafter()) {
    d->remember(text_.tokens(), made());
    if (result_.reason != FinishReason::kCancelled) spec_.planner().count_answer(made());
  }
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
