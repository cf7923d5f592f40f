#include "support/levels_backend.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/fixed_math.h"

namespace sx::testing {
namespace {

constexpr int kWords = 8, kMostRun = 511;

}  // namespace

struct TreeGrowthBackend::Growth {
  std::vector<Node> level;                  // the newest, best first
  int first = 0;                            // its first node
  int frontier = 1;                         // nodes of the level before that were run; at first the root
  std::vector<float> scores{0.0f};          // theirs
  int frontier_first = 0;                   // and the first of them
  std::vector<float> all;                   // scores of all nodes
  std::vector<std::vector<uint64_t>> bits;  // of the nodes that were run last
  float floor = 0;
  double sum = 0, gain = 1, last_gain = 0;
  int depth = 0, counted = 0;
  std::vector<std::vector<Candidate>> candidates;  // of each row, best first, as the target's tokens
};

// Ranked as requests that sample want them, see TreeGrowthSampling.
static void reweigh(std::vector<Candidate>& row, const TreeGrowthSampling& how, uint64_t position) {
  if (how.top_k > 0 && size_t(how.top_k) < row.size()) row.resize(size_t(how.top_k));
  const float top = row[0].logit;
  double sum = 0, kept = 0;
  for (const Candidate& c : row) sum += fixed_exp(double(c.logit - top));
  size_t left = 0;
  while (left < row.size() && kept < double(how.top_p) * sum) kept += fixed_exp(double(row[left++].logit - top));
  left = std::max<size_t>(left, 1);
  while (how.least < 0 && left > 1 && double(row[left - 1].logit - top) < how.least) --left;
  row.resize(left);
  for (Candidate& c : row) {
    c.logp = c.logit / how.temperature;
    if (how.noise) c.logp += float(fixed_gumbel(how.seed, position, uint64_t(c.token)));
  }
  std::stable_sort(row.begin(), row.end(), [&](const Candidate& x, const Candidate& y) {
    return x.logp != y.logp ? x.logp > y.logp : how.noise && x.token < y.token;
  });
  const double largest = double(row[0].logp);
  sum = 0;
  for (const Candidate& c : row) sum += fixed_exp(double(c.logp) - largest);
  const double all = largest + fixed_log(sum);
  for (Candidate& c : row) c.logp = float(double(c.logp) - all);
}

void TreeGrowthBackend::find_candidates(const TreeGrowthArgs& a, Growth& g) {
  const int k = std::min(std::max(a.rules.branch, a.sampling.pool), a.vocab);
  std::vector<Candidate> found(size_t(g.frontier) * size_t(k));
  right_->top_k({found.data(), a.logits, g.frontier, a.vocab, k, a.stride});
  std::vector<Token> map(a.map ? size_t(a.vocab) : 0);
  if (a.map) right_->download(reinterpret_cast<float*>(map.data()), reinterpret_cast<const float*>(a.map), map.size());
  g.candidates.clear();
  for (auto at = found.begin(); at != found.end(); at += k) {
    std::vector<Candidate> row(at, at + k);
    for (Candidate& c : row)
      if (a.map) c.token = map[size_t(c.token)];
    if (a.sampling.pool > 0) reweigh(row, a.sampling, a.sampling.position + uint64_t(g.depth));
    if (int(row.size()) > a.rules.branch) row.resize(size_t(a.rules.branch));
    g.candidates.push_back(row);
  }
}

void TreeGrowthBackend::add_level(const TreeGrowthArgs& a, Growth& g) {
  const TreeGrowthRules& rules = a.rules;
  find_candidates(a, g);
  g.level.clear();
  for (int row = 0, order = 0; row < g.frontier; ++row) {
    for (const Candidate& c : g.candidates[size_t(row)]) {
      const float score = g.scores[size_t(row)] + (c.logp > 0 ? 0.0f : c.logp);
      if (score > g.floor) g.level.push_back({g.frontier_first + row, row, order, c.token, score});
      ++order;
    }
  }
  std::sort(g.level.begin(), g.level.end(),
            [](const Node& x, const Node& y) { return x.score != y.score ? x.score > y.score : x.order < y.order; });
  if (int(g.level.size()) > rules.nodes) g.level.resize(size_t(rules.nodes));
  GrownTree& out = *a.out;
  g.first = out.size;
  for (const Node& n : g.level) {
    const auto at = size_t(out.size++);
    out.token[at] = n.token, out.parent[at] = n.parent, out.score[at] = n.score;
    g.all.push_back(n.score);
  }
  std::sort(g.all.begin(), g.all.end(), std::greater<>());
  g.counted = std::min(int(g.all.size()), rules.nodes);
  const float worst = g.counted < rules.nodes ? -std::numeric_limits<float>::infinity() : g.all[size_t(g.counted) - 1];
  g.floor = std::max(rules.dead, worst);
  double sum = 0;
  for (int i = 0; i < g.counted; ++i) sum += fixed_exp(double(g.all[size_t(i)]));
  g.last_gain = g.gain;
  g.gain = sum - g.sum;
  g.sum += g.gain;
  ++g.depth;
}

// Whether running the frontier is worth it.
bool TreeGrowthBackend::goes_on(const TreeGrowthRules& rules, const Growth& g) const {
  double most = 0;
  for (int i = 0; i < g.frontier; ++i) most += fixed_exp(double(g.level[size_t(i)].score));
  if (g.frontier == 0 || most <= double(rules.level_cost)) return false;
  if (!rules.while_it_pays) return true;
  if (!rules.verify_cost || rules.level_cost <= 0) return g.gain > double(rules.threshold);
  const double gain = std::min(most, g.gain * std::min(1.0, g.gain / g.last_gain));
  const double cost = double(rules.level_cost) * g.depth + double(rules.verify_cost[g.counted]);
  return gain * cost > double(rules.level_cost) * (1 + g.sum);
}

void TreeGrowthBackend::run_pass(const TreeGrowthArgs& a, Growth& g, StepInputs& step, const StepKey& key,
                                 FunctionRef body) {
  GrownTree& out = *a.out;
  const int rows = g.frontier, uncommitted = out.run;
  std::vector<Token> tokens;
  std::vector<int32_t> positions, outputs, which;
  std::vector<uint64_t> ancestors;
  std::vector<std::vector<uint64_t>> bits;
  g.scores.clear();
  for (int i = 0; i < rows; ++i) {
    const Node& n = g.level[size_t(i)];
    tokens.push_back(n.token), positions.push_back(a.positions[g.depth - 1]), outputs.push_back(i),
        which.push_back(n.row);
    bits.push_back(g.depth == 1 ? std::vector<uint64_t>(kWords) : g.bits[size_t(n.row)]);
    bits.back()[size_t(uncommitted + i) / 64] |= uint64_t(1) << ((uncommitted + i) % 64);
    ancestors.insert(ancestors.end(), bits.back().begin(), bits.back().end());
    g.scores.push_back(n.score);
    out.ran[out.run++] = g.first + i;
  }
  g.bits = bits;
  g.frontier_first = g.first;
  if (a.states && g.depth > 1) right_->copy_rows({a.states, a.left, rows, a.width, a.width, a.width, which.data()});
  const SeqRows seq{0, rows, a.slot, a.history, ancestors.data(), kWords, uncommitted};
  step.tokens = tokens, step.positions = positions, step.seqs = {&seq, 1}, step.outputs = outputs, step.prompt = false;
  right_->run(step, key, body);
  ++out.passes, ++passes_;
}

bool TreeGrowthBackend::grow_tree(const TreeGrowthArgs& a, StepInputs& step, const StepKey& key, FunctionRef body) {
  SX_ASSERT(a.rules.nodes > 0 && a.rules.depth > 0 && a.rules.rows > 0 && a.rules.rows <= rows_);
  Growth g;
  g.floor = a.rules.dead;
  a.out->size = 1, a.out->run = a.out->passes = 0;
  ++trees_;
  for (;;) {
    add_level(a, g);
    if (g.depth == a.rules.depth) return true;
    const int most = std::min({a.rules.branch, a.rules.rows, (kMostRun - a.out->run + 1) / 2, int(g.level.size())});
    g.frontier = 0;
    while (g.frontier < most && g.level[size_t(g.frontier)].score > g.floor) ++g.frontier;
    if (!goes_on(a.rules, g)) return true;
    run_pass(a, g, step, key, body);
  }
}

}  // namespace sx::testing
