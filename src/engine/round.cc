#include "engine/round.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"

namespace sx {

Round::Round(EngineImpl& engine) : engine_(engine), spec_(engine.speculation()), max_rows_(engine.model().options().max_outputs) {
  const size_t rows = size_t(max_rows_), most = std::min(rows, size_t(engine.options().max_sessions));
  tokens_.resize(rows);
  positions_.resize(rows);
  outputs_.resize(rows);
  for (size_t i = 0; i < rows; ++i) outputs_[i] = int32_t(i);
  active_.reserve(most);
  tasks_.reserve(most);
  outcomes_.reserve(most);
  seqs_.reserve(most);
  committed_.reserve(most);
  moves_.reserve(kMaxTreeNodes);
}

void Round::run(std::span<Generation* const> batch) {
  SX_ASSERT(int(batch.size()) <= max_rows_);
  const double start = now_ms();
  times_ = {};
  active_.assign(batch.begin(), batch.end());
  for (Generation* g : active_) g->exhausted();
  if (!go_on()) return;
  draft();
  if (!go_on()) return;
  verify();
  if (!go_on()) return;
  judge();
  commit();
  times_.host = now_ms() - start - times_.draft - times_.verify - times_.judge - times_.commit - times_.score;
  count();
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

// Every request gets its share of the rows of a pass. A request that cannot pay for a draft keeps a tree of one node.
void Round::draft() {
  tasks_.clear();
  const int share = max_rows_ / int(active_.size()) - 1;
  for (Generation* g : active_) {
    g->tree->reset(g->session.tokens().back());
    g->drafted = 0;
    const int room = engine_.context() - g->session.length() - 1;
    const int depth = std::min({spec_.depth(), g->remaining() - 1, room});
    DraftTask task{g->session.seq(), g->session.tokens(), &g->sampling, g->bias, g->window.counts(),
                   {std::min({spec_.nodes(), share, room}), depth}, g->tree, false, g->laws};
    g->drafting = spec_.drafter() && g->options.speculate && depth > 0 && task.limits.nodes > 0 && (!spec_.priced() || affordable(*g, task));
    if (g->drafting) tasks_.push_back(task);
  }
  if (tasks_.empty()) return;
  spec_.drafter()->draft(tasks_);
  times_.draft = spec_.drafter()->take_forward_ms();
  times_.score = spec_.drafter()->take_cache_ms();
  for (Generation* g : active_) {
    if (!g->drafting) continue;
    g->drafted = g->tree->drafted();
    if (!spec_.priced() || !spec_.runs_model()) continue;  // an index has cut its tree itself
    const int worth = worthwhile_nodes(*g->tree, spec_.costs(), times_.draft / plain_ms(*g), g->controller.trust());
    if (worth < g->tree->drafted()) g->tree->keep_best(worth);
  }
}

// A round of these requests without drafts.
double Round::plain_ms(const Generation& g) const { return std::max(1e-6, spec_.price().predict(int(active_.size()), g.session.length())); }

// Sets the prices of a draft, and its limits to what the request can pay; false: not even one node, or not the drafting.
bool Round::affordable(Generation& g, DraftTask& task) {
  // Prices of a batch are those of its first request: its histories matter little here.
  if (tasks_.empty()) spec_.price().costs(spec_.nodes(), int(active_.size()), g.session.length(), spec_.costs());
  const std::span<const float> cost = spec_.costs();
  task.limits.verify_cost = cost.data();
  task.limits.level_cost = float(spec_.drafter()->level_ms() / plain_ms(g));
  double credit = g.controller.credit();
  task.cheap_only = spec_.runs_model() && credit < g.controller.draft_cost() + double(cost[1]) - 1;
  if (task.cheap_only && !spec_.has_index()) return false;
  if (spec_.runs_model() && !task.cheap_only) credit -= g.controller.draft_cost();
  int& nodes = task.limits.nodes;
  while (nodes > 0 && double(cost[size_t(nodes)]) - 1 > credit) --nodes;
  return nodes > 0;
}

void Round::verify() {
  double mark = now_ms();
  seqs_.clear();
  int rows = 0;
  double history = 0;
  for (Generation* g : active_) {
    TokenTree& tree = *g->tree;
    const int size = tree.size(), length = g->session.length();
    engine_.book().stage(g->session.seq(), size);
    g->first_row = rows;
    seqs_.push_back({rows, size, g->session.seq(), length, size > 1 ? tree.ancestors() : nullptr, size > 1 ? tree.words() : 0});
    for (NodeId n = 0; n < size; ++n) {
      tokens_[size_t(rows + n)] = tree.token(n);
      positions_[size_t(rows + n)] = length + tree.depth(n);
    }
    rows += size;
    history += length;
  }
  const size_t n = size_t(rows);
  step_ = &engine_.model().forward({std::span(tokens_).first(n), std::span(positions_).first(n), seqs_, std::span(outputs_).first(n)},
                                   engine_.kv());
  engine_.device().wait();
  times_.verify = since(mark);
  spec_.price().observe(rows, history / double(active_.size()), times_.verify);
}

void Round::judge() {
  double mark = now_ms();
  for (Generation* each : active_) {
    Generation& g = *each;
    spec_.acceptance().judge({g.tree, logits_of(g), engine_.vocab(), g.session.tokens().size(), &g.sampling, g.bias, &g.window, g.laws}, g.verdict);
  }
  times_.judge = since(mark);
  committed_.clear();
  for (Generation* g : active_) committed_.push_back(g->take(logits_of(*g)));
}

void Round::commit() {
  double mark = now_ms();
  outcomes_.clear();
  for (size_t i = 0; i < active_.size(); ++i) {
    Generation& g = *active_[i];
    const auto path = std::span(g.verdict.path).first(size_t(committed_[i]));
    const int history = g.session.length();
    moves_.clear();
    engine_.book().commit(g.session.seq(), path, moves_);
    if (!moves_.empty()) engine_.device().kv_move({&engine_.kv(), &engine_.kv(), g.session.seq(), g.session.seq(), moves_});
    const bool whole = path.size() == g.verdict.path.size();
    const Token next = whole ? g.verdict.next : g.tree->token(g.verdict.path[path.size()]);
    // A request that decodes plainly pays for no drafter; one that reads the target then has to see these tokens again.
    if (g.drafting || (spec_.drafter() && g.options.speculate && spec_.drafter()->reads_target()))
      outcomes_.push_back({g.session.seq(), g.tree, path, next, step_, g.first_row, history, g.session.tokens()});
  }
  times_.commit = since(mark);
  if (outcomes_.empty()) return;
  spec_.drafter()->observe(outcomes_);
  const double cache = spec_.drafter()->take_cache_ms(), draft = spec_.drafter()->take_forward_ms();
  times_.score += cache, times_.draft += draft;
  times_.commit += since(mark) - cache - draft;
}

void Round::count() {
  for (size_t i = 0; i < active_.size(); ++i) {
    Generation& g = *active_[i];
    g.count(g.drafted, committed_[i], times_);
    if (!g.drafting || !spec_.priced()) {
      g.controller.plain_round();
      continue;
    }
    double expected = 0;
    for (NodeId n = 1; n < g.tree->size(); ++n) expected += std::exp(double(g.tree->score(n)));
    g.controller.drafted_round(expected, int(g.verdict.path.size()) - 1, times_.draft / plain_ms(g), double(spec_.costs()[size_t(g.tree->drafted())]));
  }
}

}  // namespace sx
