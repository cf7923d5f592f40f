#include "engine/round.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/clock.h"
#include "base/error.h"

namespace sx {
namespace {

constexpr double kNearlyAll = 0.75;  // of a batch
// Faded costs are for trying what the costs forbid: where a node costs more than a good guess brings, and now and then.
constexpr double kHopeless = 0.7;   // plain passes
constexpr int kHopeEvery = 32;      // passes
constexpr double kMuchSlower = 1.5;  // than expected: the cost_model is wrong, or the pass was interrupted
constexpr int kWorthReading = 8;  // tokens still to come for which a drafter reads a long prompt

}  // namespace

Round::Round(EngineImpl& engine) : engine_(engine), max_outputs_(engine.model().options().max_outputs) {
  const size_t rows = size_t(engine.model().options().max_rows), sessions = size_t(engine.options().max_sessions);
  tokens_.reserve(rows);
  positions_.reserve(rows);
  outputs_.resize(size_t(max_outputs_));
  for (size_t i = 0; i < outputs_.size(); ++i) outputs_[i] = int32_t(i);
  active_.reserve(sessions);
  prompts_.reserve(sessions);
  tasks_.reserve(sessions);
  outcomes_.reserve(sessions);
  seqs_.reserve(sessions);
  committed_.reserve(sessions);
  histories_.reserve(sessions);
  moves_.reserve(kMaxTreeNodes);
}

void Round::run(std::span<Generation* const> batch, std::span<const PromptPiece> prompts, int company) {
  SX_ASSERT(int(batch.size()) <= max_outputs_);
  const double start = now_ms();
  const bool apart = engine_.device().prefers_batches();  // prompts are run in a way of their own there
  times_ = {};
  active_.assign(batch.begin(), batch.end());
  prompts_.assign(prompts.begin(), prompts.end());
  shared_pass_ = !prompts.empty();
  company_ = company;
  for (Generation* g : active_) g->exhausted();
  if (go_on()) draft();
  go_on();
  if (!active_.empty() || !apart) verify(!apart);
  const bool any = go_on();
  if (any) accept();
  if (!apart) score_prompts();
  if (any) commit();
  if (apart) {
    run_prompts();
    score_prompts();
  }
  end_prompts();
  const double all = now_ms() - start;
  times_.host = all - times_.draft - times_.verify - times_.accept - times_.commit - times_.score;
  count();
  settle(all);
  catch_up();
}

bool Round::go_on() {
  std::erase_if(active_, [](Generation* g) { return g->cancelled(); });
  return !active_.empty();
}

double Round::since(double& mark) const {
  const double now = now_ms(), passed = now - mark;
  mark = now;
  return passed;
}

void Round::draft() {
  for (Generation* g : active_) {
    g->tree->reset(g->session.tokens().back());
    g->drafted = 0;
    g->drafting = false;
    if (g->grammar) draft_forced(*g);
  }
  for (const auto& spec : engine_.speculations())
    if (spec->drafter()) draft_with(*spec);
}

TreeLimits Round::limits_of(const Generation& g) const {
  const int share = max_outputs_ / int(active_.size()) - 1, room = engine_.context() - g.session.length() - 1;
  return {std::min({g.most_nodes, share, room}), std::min({g.most_depth, g.remaining() - 1, room})};
}

// What a grammar leaves no choice about needs no drafter. The bytes are certain, how the model spells them is not.
void Round::draft_forced(Generation& g) {
  g.grammar->begin();
  const TreeLimits limits = limits_of(g);
  const int most = std::min(limits.nodes, limits.depth);
  if (!g.drafter() || g.distributions || most <= 0) return;
  NodeId last = 0;
  for (Token token : g.grammar->forced_tokens(size_t(most))) last = g.tree->add(last, token, 0);
  g.grammar->prune(*g.tree);
  g.drafted = g.tree->drafted();
}

// Every request gets its share of the rows of a pass. A request that cannot pay for a draft, or whose drafter has not read the prompt
// yet, keeps a tree of one node; so do all where the batch as a whole loses by drafts.
void Round::draft_with(Speculation& spec) {
  tasks_.clear();
  const auto ready = [&](const Generation* g) {
    return &g->spec == &spec && g->drafter() && g->drafted == 0 && spec.drafter()->behind(g->session.seq(), g->session.tokens()) <= kMaxChain;
  };
  bool one = false;  // drafts, until it is known that they pay in such a batch: all of them together would be a dear try
  if (spec.has_costs()) {
    const int requests = int(active_.size());
    if (!spec.batch_budget().may_draft(requests)) return;
    one = requests > 1 && spec.runs_model() && !spec.batch_budget().proven(requests);
    const auto drafting = one ? 1 : std::count_if(active_.begin(), active_.end(), ready);
    // Who does not draft only waits longer for those who do: nearly all must have something of it.
    if (!one && spec.runs_model() && double(drafting) < kNearlyAll * requests) return;
    // Costs of a batch are those of its first request: its histories matter little here.
    if (const auto first = std::find_if(active_.begin(), active_.end(), ready); first != active_.end()) set_costs(**first, int(drafting));
  }
  for (Generation* g : active_) {
    if (!ready(g) || (one && !tasks_.empty())) continue;
    DraftTask task{g->session.seq(), g->session.tokens(), &g->sampling, g->bias, g->window.counts(), limits_of(*g), g->tree, false, g->distributions,
                   g->grammar.get()};
    g->drafting = task.limits.depth > 0 && task.limits.nodes > 0 && (!spec.has_costs() || within_budget(*g, task));
    if (g->drafting) tasks_.push_back(task);
  }
  if (tasks_.empty()) return;
  spec.drafter()->draft(tasks_);
  const double ms = spec.drafter()->take_forward_ms();
  times_.draft += ms;
  times_.score += spec.drafter()->take_cache_ms();
  for (Generation* g : active_) {
    if (!g->drafting || &g->spec != &spec) continue;
    g->drafted = g->tree->drafted();
    // Rules that rely on how a tree was drawn drew it from what the grammar allows.
    if (g->grammar && !g->distributions) g->grammar->prune(*g->tree);
    if (!spec.has_costs() || !spec.runs_model()) continue;  // an index has cut its tree itself
    const int worth = worthwhile_nodes(*g->tree, spec.costs(), ms / plain_ms(*g), g->draft_budget.confidence());
    if (worth < g->tree->drafted()) g->tree->keep_best(worth);
  }
}

// A round of these requests without drafts.
double Round::plain_ms(const Generation& g) const { return std::max(1e-6, g.spec.cost_model().predict(int(active_.size()), g.session.length())); }

// One more level of a draft, for choosing what to try: what it took long ago is believed less and less.
double Round::hoped_level(const Generation& g) const { return faded(g.spec.drafter()->level_ms(), g.spec.batch_budget().idle()) / plain_ms(g); }

// What nodes of one request cost it, if all who draft have as many: time that a batch of four loses must be worth four times as much.
void Round::set_costs(const Generation& g, int drafting) {
  const CostModel::Company company{int(active_.size()), drafting, double(g.session.length())};
  const CostModel& cost_model = g.spec.cost_model();
  cost_model.costs(g.spec.nodes(), company, g.spec.costs(), false);
  if (g.spec.nodes() < 1) return;
  const bool hopeless = double(g.spec.costs()[1]) - 1 > kHopeless;
  if (hopeless || cost_model.rounds() % kHopeEvery == 0) cost_model.costs(g.spec.nodes(), company, g.spec.costs());
}

// Sets the costs of a draft, and its limits to what the request can pay; false: not even one node, or not the drafting.
bool Round::within_budget(Generation& g, DraftTask& task) {
  Speculation& spec = g.spec;
  const std::span<const float> cost = spec.costs();
  task.limits.verify_cost = cost.data();
  task.limits.level_cost = float(spec.drafter()->level_ms() / plain_ms(g));
  double balance = g.draft_budget.balance();
  const double node = double(cost[1]) - 1, level = double(task.limits.level_cost);
  const bool known = level > 0 || active_.size() == 1;  // what a level costs a batch is found out with one
  // Trees of a single request end where a level does not pay, so its first draft is simply made; in a batch all would wait for the deepest.
  const double deepest = active_.size() > 1 ? level * task.limits.depth : 0;
  const bool whole = !spec.runs_model() || (known && g.draft_budget.covers_draft(node, deepest));
  g.shallow = false;
  int depth = whole ? task.limits.depth : g.draft_budget.depth_within_budget(task.limits.depth, level, node);
  const double hoped = hoped_level(g);
  const bool probe = !whole && (spec.has_index() ? !known || hoped < level : depth == 0) && g.draft_budget.may_probe(hoped, node);
  task.cheap_only = !whole && !probe && spec.has_index();
  if (spec.runs_model() && !task.cheap_only) {
    if (probe) depth = 1;
    if (depth == 0) return false;
    g.shallow = depth < task.limits.depth;
    task.limits.depth = depth;
    if (!probe) balance -= whole ? g.draft_budget.draft_cost() : depth * level;
  }
  int& nodes = task.limits.nodes;
  while (nodes > 0 && double(cost[size_t(nodes)]) - 1 > balance) --nodes;
  return nodes > 0;
}

void Round::begin_step() {
  seqs_.clear();
  tokens_.clear();
  positions_.clear();
}

void Round::add_trees() {
  for (Generation* g : active_) {
    TokenTree& tree = *g->tree;
    const int size = tree.size(), length = g->session.length();
    engine_.sequences().add_uncommitted(g->session.seq(), size);
    g->first_row = int(tokens_.size());
    seqs_.push_back({g->first_row, size, g->session.seq(), length, size > 1 ? tree.ancestors() : nullptr, size > 1 ? tree.words() : 0});
    for (NodeId n = 0; n < size; ++n) {
      tokens_.push_back(tree.token(n));
      positions_.push_back(length + tree.depth(n));
    }
  }
}

void Round::add_prompts() {
  std::erase_if(prompts_, [](const PromptPiece& p) { return p.generation->cancelled(); });
  for (PromptPiece& p : prompts_) {
    const SessionImpl& session = p.generation->session;
    p.first_row = int(tokens_.size());
    seqs_.push_back({p.first_row, p.rows, session.seq(), session.length()});
    const auto rows = p.generation->waiting().first(size_t(p.rows));
    tokens_.insert(tokens_.end(), rows.begin(), rows.end());
    for (int i = 0; i < p.rows; ++i) positions_.push_back(session.length() + i);
  }
}

bool Round::scored() const {
  return std::any_of(prompts_.begin(), prompts_.end(), [](const PromptPiece& p) { return p.generation->scored(); });
}

void Round::pass(int outputs, bool prompt) {
  step_ = &engine_.model().forward({tokens_, positions_, seqs_, std::span(outputs_).first(size_t(outputs)), prompt}, engine_.kv());
}

void Round::verify(bool with_prompts) {
  double mark = now_ms();
  begin_step();
  add_trees();
  const int rows = int(tokens_.size());
  if (with_prompts) add_prompts();
  if (tokens_.empty()) return;
  pass(rows > 0 ? rows : scored(), rows == 0);
  engine_.device().wait();
  times_.verify = since(mark);
  if (int(tokens_.size()) > rows) return;  // says nothing about the cost_model of trees
  double history = 0;
  for (const Generation* g : active_) history += g->session.length();
  engine_.cost_model().observe(rows, history / double(active_.size()), times_.verify);
}

void Round::run_prompts() {
  begin_step();
  add_prompts();
  if (!tokens_.empty()) pass(scored(), true);
}

// Takes the place of the logits of trees, which have been judged.
void Round::score_prompts() {
  for (const PromptPiece& p : prompts_)
    if (p.generation->scored()) p.generation->score(p.rows, p.first_row);
}

// Their drafters read the pass, so this comes before any other.
void Round::end_prompts() {
  for (const PromptPiece& p : prompts_) p.generation->prompted(p.rows, *step_, p.first_row);
}

void Round::accept() {
  double mark = now_ms();
  for (Generation* each : active_) {
    Generation& g = *each;
    g.broken.assign(size_t(g.tree->size()), 0);
    g.spec.acceptance(g.drafter() != nullptr).accept({g.tree, logits_of(g), engine_.vocab(), g.session.tokens().size(), &g.sampling, g.bias, &g.window, g.distributions, g.grammar.get(),
                                                      g.broken.data()}, g.result);
  }
  times_.accept = since(mark);
  committed_.clear();
  size_t left = 0;
  for (Generation* g : active_) {
    const int nodes = g->take(logits_of(*g));
    if (nodes == 0) continue;  // it failed before its next token
    committed_.push_back(nodes);
    active_[left++] = g;
  }
  active_.resize(left);
}

void Round::commit() {
  double mark = now_ms();
  histories_.clear();
  for (size_t i = 0; i < active_.size(); ++i) {
    Generation& g = *active_[i];
    const auto path = std::span(g.result.path).first(size_t(committed_[i]));
    histories_.push_back(g.session.length());
    moves_.clear();
    engine_.sequences().commit(g.session.seq(), path, moves_);
    if (!moves_.empty()) engine_.device().kv_move({&engine_.kv(), &engine_.kv(), g.session.seq(), g.session.seq(), moves_});
  }
  times_.commit = since(mark);
  for (const auto& spec : engine_.speculations())
    if (spec->drafter()) observe(*spec);
}

void Round::observe(Speculation& spec) {
  double mark = now_ms();
  outcomes_.clear();
  for (size_t i = 0; i < active_.size(); ++i) {
    Generation& g = *active_[i];
    // A request that decodes plainly pays for no drafter; one that reads the target then has to see these tokens again.
    if (&g.spec != &spec || !(g.drafting || (g.drafter() && spec.drafter()->reads_target()))) continue;
    const auto path = std::span(g.result.path).first(size_t(committed_[i]));
    const bool whole = path.size() == g.result.path.size();
    const Token next = whole ? g.result.next : g.tree->token(g.result.path[path.size()]);
    outcomes_.push_back({g.session.seq(), g.tree, path, next, step_, g.first_row, histories_[i], g.session.tokens()});
  }
  if (outcomes_.empty()) return;
  spec.drafter()->observe(outcomes_);
  const double cache = spec.drafter()->take_cache_ms(), draft = spec.drafter()->take_forward_ms();
  times_.score += cache, times_.draft += draft;
  times_.commit += since(mark) - cache - draft;
}

// What verifying its nodes cost a request, in plain passes: its share of what all lost by them. Of a single request by the costs, which every
// pass corrects and whose errors cancel in their ratio, unless they are far off. In a batch by the clock, because sizes are many and most of them
// seldom tried. A pass that was interrupted counts as at most twice what was expected.
double Round::verifying(const Generation& g) const {
  if (g.tree->drafted() == 0) return 1;
  int nodes = 0;
  for (const Generation* each : active_) nodes += each->tree->drafted();
  const double plain = plain_ms(g), expected = g.spec.cost_model().predict(int(active_.size()) + nodes, g.session.length()) / plain;
  const double measured = std::min(times_.verify / plain, 2 * std::max(1.0, expected));
  const bool by_cost = shared_pass_ || (active_.size() == 1 && measured < kMuchSlower * expected);
  const double took = by_cost ? expected : measured;
  return 1 + std::max(0.0, took - 1) * double(active_.size()) * g.tree->drafted() / nodes;
}

void Round::count() {
  for (size_t i = 0; i < active_.size(); ++i) {
    Generation& g = *active_[i];
    g.count(g.drafted, committed_[i], times_, g.spec.has_costs() ? plain_ms(g) : 0);
    if (!g.drafting || !g.spec.has_costs()) {
      g.draft_budget.plain_round();
      continue;
    }
    double expected = 0;
    for (NodeId n = 1; n < g.tree->size(); ++n) expected += std::exp(double(g.tree->score(n)));
    g.draft_budget.drafted_round(expected, int(g.result.path.size()) - 1, times_.draft / plain_ms(g), verifying(g) + times_.score / plain_ms(g),
                               !g.shallow);
  }
}

// Tells those who draft what the round has given to all of it.
void Round::settle(double ms) {
  for (const auto& spec : engine_.speculations()) spec->count_round();
  if (active_.empty() || shared_pass_) return;
  const int requests = int(active_.size()), tokens = std::accumulate(committed_.begin(), committed_.end(), 0);
  const bool plain = std::none_of(active_.begin(), active_.end(), [](const Generation* g) { return g->drafting || g->tree->drafted() > 0; });
  double history = 0;
  for (const Generation* g : active_) history += g->session.length();
  const double expected = engine_.cost_model().predict(requests, history / requests);
  if (!(expected > 0)) return;
  for (const auto& spec : engine_.speculations()) {
    if (!spec->has_costs()) continue;
    const auto own = std::count_if(active_.begin(), active_.end(), [&](const Generation* g) { return g->drafting && &g->spec == spec.get(); });
    const bool trial = spec->runs_model() && double(own) < kNearlyAll * requests;
    if (own > 0) spec->batch_budget().drafted_round(requests, tokens, ms / expected, trial);
    else if (plain) spec->batch_budget().plain_round(requests, ms / expected);
  }
}

// The share of its time that drafts would save a request in this company if they were good.
double Round::hoped_saving(const Generation& g) const {
  constexpr double kGoodGuess = 0.7;  // a level is right
  const double level = hoped_level(g);
  double best = 1, tokens = 1, right = 1;
  for (int depth = 1; depth <= std::min(g.spec.depth(), g.spec.nodes()); ++depth) {
    tokens += right *= kGoodGuess;
    best = std::min(best, (double(g.spec.costs()[size_t(depth)]) + depth * level) / tokens);
  }
  return 1 - best;
}

// Whether it pays that the drafter reads what it is behind with, while everybody waits: by what drafts could save this request, and by what they
// have saved in such company. If not, the reading is paid from what the batch may spend on trying.
bool Round::worth_reading(const Generation& g, int behind) {
  if (!g.spec.has_costs() || g.spec.nodes() < 1) return true;
  const int requests = std::max(company_, int(active_.size()));
  g.spec.cost_model().costs(g.spec.nodes(), {requests, requests, double(g.session.length())}, g.spec.costs());
  const double saving = requests > 1 ? std::min(hoped_saving(g), g.spec.batch_budget().saved(requests)) : hoped_saving(g);
  const double plain = std::max(1e-6, g.spec.cost_model().predict(requests, g.session.length())), reading = behind * g.spec.read_ms();
  if (saving > 0 && reading * requests <= saving * g.remaining() * plain) return true;
  if (requests == 1) return false;
  const double piece = std::min(reading, engine_.options().chunk * g.spec.read_ms()) / plain;
  if (g.spec.read_ms() == 0 || !g.spec.batch_budget().covers_reading(requests, piece)) return false;
  g.spec.batch_budget().reading(requests, piece);
  return true;
}

// Drafters read long prompts after the first token has been shown, one piece of one of them in a round: nobody waits for a draft.
void Round::catch_up() {
  Generation* first = nullptr;
  int least = 0;
  for (Generation* g : active_) {
    if (g->done() || !g->drafter() || g->remaining() < kWorthReading) continue;
    const int behind = g->drafter()->behind(g->session.seq(), g->session.tokens());
    if (behind > kMaxChain && (!first || behind < least)) first = g, least = behind;
  }
  if (first && worth_reading(*first, least)) first->catch_up();
}

}  // namespace sx
