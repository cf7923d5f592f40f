// The fusion of two drafters against the union of their token paths.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "speculative/draft/copy_confidence.h"
#include "speculative/draft/drafters.h"
#include "support/counting_new.h"

namespace sx {
namespace {

using Text = std::vector<Token>;

struct Calls {
  int open = 0, close = 0, truncate = 0, prefill = 0, observe = 0, draft = 0;
};

// Drafts what it is told and counts its calls.
class FakeDrafter : public Drafter {
 public:
  FakeDrafter(uint8_t source, Calls& calls) : source_(source), calls_(calls) {}
  struct Node {
    NodeId parent;
    Token token;
    float score;
  };
  std::map<SeqId, std::vector<Node>> drafts;
  std::vector<SeqId> drafted;
  const float* seen_cost = nullptr;
  int prefills_needed = 1;

  void open(SeqId) override { ++calls_.open; }
  void close(SeqId) override { ++calls_.close; }
  void truncate(SeqId, int) override { ++calls_.truncate; }
  bool prefill(SeqId, std::span<const Token>) override { return ++calls_.prefill >= prefills_needed; }
  void observe(std::span<const Outcome> outcomes) override { calls_.observe += int(outcomes.size()); }
  double level_ms() const override { return 2; }
  DraftTimes take_times() override { return {3, 1}; }
  void draft(std::span<DraftTask> tasks) override {
    ++calls_.draft;
    for (DraftTask& task : tasks) {
      drafted.push_back(task.seq);
      seen_cost = task.limits.verify_cost;
      for (const Node& n : drafts[task.seq]) task.tree->add(n.parent, n.token, n.score, source_);
    }
  }

 private:
  uint8_t source_;
  Calls& calls_;
};

struct Rig {
  explicit Rig(int slots, int nodes) {
    auto m = std::make_unique<FakeDrafter>(kFromModel, model_calls);
    auto i = std::make_unique<FakeDrafter>(kFromIndex, index_calls);
    model = m.get(), index = i.get();
    fuse = make_fuse_drafter(std::move(m), std::move(i), slots, nodes);
  }
  Calls model_calls, index_calls;
  FakeDrafter *model, *index;
  std::unique_ptr<Drafter> fuse;
};

// A random tree of few tokens, so that two of them share paths; scores fall along paths and are all different.
std::vector<FakeDrafter::Node> random_draft(std::mt19937& random, int nodes) {
  std::vector<FakeDrafter::Node> draft;
  TokenTree tree(nodes + 1);
  tree.reset(0);
  while (tree.drafted() < nodes) {
    const auto parent = NodeId(random() % unsigned(tree.size()));
    const Token token = Token(random() % 4);
    if (tree.child(parent, token) != kNoNode) {
      if (random() % 50 == 0) break;
      continue;
    }
    const float score = tree.score(parent) - 0.001f - float(random() % 1000003) / 1000003;
    tree.add(parent, token, score);
    draft.push_back({parent, token, score});
  }
  return draft;
}

struct Known {
  float score;
  int source;
};
using Paths = std::map<Text, Known>;

void add_paths(Paths& paths, const std::vector<FakeDrafter::Node>& draft, int source) {
  std::vector<Text> path = {{}};
  for (const auto& n : draft) {
    path.push_back(path[size_t(n.parent)]);
    path.back().push_back(n.token);
    auto [at, added] = paths.emplace(path.back(), Known{n.score, source});
    if (!added) at->second = {std::max(at->second.score, n.score), at->second.source | source};
  }
}

Paths paths_of(const TokenTree& tree) {
  Paths paths;
  for (NodeId n = 1; n < tree.size(); ++n) {
    Text path;
    for (NodeId a = n; a != 0; a = tree.parent(a)) path.insert(path.begin(), tree.token(a));
    EXPECT_TRUE(paths.emplace(path, Known{tree.score(n), tree.source(n)}).second) << "a path twice";
  }
  return paths;
}

// The best n of the union.
Paths best(const Paths& all, size_t n) {
  std::vector<std::pair<Text, Known>> order(all.begin(), all.end());
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.second.score > b.second.score; });
  order.resize(std::min(order.size(), n));
  return {order.begin(), order.end()};
}

size_t best_size(const Paths& all, size_t nodes, const float* cost) {
  std::vector<float> scores;
  for (const auto& [path, known] : best(all, nodes)) scores.push_back(known.score);
  std::sort(scores.begin(), scores.end(), std::greater<>());
  if (!cost) return scores.size();
  size_t size = 0;
  double tokens = 1, most = 1;
  for (size_t n = 1; n <= scores.size(); ++n) {
    tokens += std::exp(double(scores[n - 1]));
    if (tokens / double(cost[n]) > most) most = tokens / double(cost[n]), size = n;
  }
  return size;
}

void expect_equal(const Paths& found, const Paths& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (auto f = found.begin(), e = expected.begin(); f != found.end(); ++f, ++e) {
    ASSERT_EQ(f->first, e->first);
    ASSERT_EQ(f->second.source, e->second.source);
    ASSERT_EQ(f->second.score, e->second.score);
  }
}

// Several sequences at once, with trees that have plenty of room and just enough.
TEST(FuseDrafter, TheBestOfTheUnion) {
  std::mt19937 random(1);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    const int slots = 1 + int(random() % 3), nodes = 1 + int(random() % 20);
    Rig rig(slots, nodes);
    std::vector<TokenTree> trees;
    std::vector<float> cost = {1};
    for (int i = 0; i < nodes; ++i) cost.push_back(cost.back() + float(random() % 1000) / 5000);
    std::vector<DraftTask> tasks;
    const Text text = {1, 2, 3};
    for (int i = 0; i < slots; ++i) {
      trees.emplace_back(random() % 2 ? nodes + 1 : 2 * nodes + 1);
      trees.back().reset(3);
      rig.model->drafts[i] = random_draft(random, int(random() % unsigned(nodes + 1)));
      rig.index->drafts[i] = random_draft(random, int(random() % unsigned(nodes + 1)));
    }
    for (int i = 0; i < slots; ++i) {
      DraftTask task;
      task.seq = i, task.text = text, task.tree = &trees[size_t(i)];
      task.limits.nodes = nodes, task.limits.depth = nodes;
      if (repeat % 2) task.limits.verify_cost = cost.data();
      tasks.push_back(task);
    }
    rig.fuse->draft(tasks);
    EXPECT_EQ(rig.index->seen_cost, nullptr);
    EXPECT_EQ(rig.model->seen_cost, repeat % 2 ? cost.data() : nullptr);
    for (int i = 0; i < slots; ++i) {
      Paths all;
      add_paths(all, rig.model->drafts[i], kFromModel);
      add_paths(all, rig.index->drafts[i], kFromIndex);
      const size_t size = best_size(all, size_t(nodes), tasks[size_t(i)].limits.verify_cost);
      expect_equal(paths_of(trees[size_t(i)]), best(all, size));
      for (NodeId n = 1; n < trees[size_t(i)].size(); ++n)
        ASSERT_LE(trees[size_t(i)].score(n), trees[size_t(i)].score(trees[size_t(i)].parent(n)));
    }
  }
}

TEST(FuseDrafter, TheModelRestsWhileTheIndexIsSure) {
  const std::vector<float> cost = {1, 1.01f, 1.02f, 1.03f, 1.04f, 1.05f, 1.06f};
  const auto models_run = [&](float first, float decay, const float* costs, float level) {
    Rig rig(2, 6);
    for (int i = 0; i < 5; ++i)
      rig.index->drafts[0].push_back({i, 10 + i, std::log(first) + float(i) * std::log(decay)});
    rig.model->drafts[0] = {{0, 50, -1}};
    TokenTree a(7), b(7);
    a.reset(1), b.reset(1);
    const Text text = {1};
    std::vector<DraftTask> tasks(2);
    for (auto& task : tasks) task.text = text, task.limits = {6, 6, costs, level};
    tasks[0].seq = 0, tasks[0].tree = &a;
    tasks[1].seq = 1, tasks[1].tree = &b;  // the index knows nothing here
    rig.fuse->draft(tasks);
    EXPECT_EQ(rig.index->drafted, (std::vector<SeqId>{0, 1}));
    const bool ran = rig.model->drafted.front() == 0;
    EXPECT_EQ(a.child(0, 50) != kNoNode, ran);
    EXPECT_NE(a.child(0, 10), kNoNode);
    return rig.model->drafted;
  };
  EXPECT_EQ(models_run(0.9f, 0.9f, cost.data(), 0.2f), (std::vector<SeqId>{1}));
  EXPECT_EQ(models_run(0.7f, 0.99f, cost.data(), 0.2f), (std::vector<SeqId>{0, 1}));  // not sure of the first
  EXPECT_EQ(models_run(0.9f, 0.6f, cost.data(), 0.2f), (std::vector<SeqId>{0, 1}));   // too short
  EXPECT_EQ(models_run(0.9f, 0.9f, nullptr, 0.2f), (std::vector<SeqId>{0, 1}));       // no costs
  EXPECT_EQ(models_run(0.9f, 0.9f, cost.data(), 0.0f), (std::vector<SeqId>{0, 1}));   // the model is free
}

TEST(FuseDrafter, TheModelRestsWhenOnlyCheapDraftsAreWanted) {
  Rig rig(1, 6);
  rig.index->drafts[0] = {{0, 10, -2}};
  rig.model->drafts[0] = {{0, 50, -1}};
  TokenTree tree(7);
  const Text text = {1};
  for (bool cheap : {true, false}) {
    tree.reset(1);
    DraftTask task;
    task.text = text, task.limits = {6, 6, nullptr, 0}, task.tree = &tree, task.cheap_only = cheap;
    rig.fuse->draft({&task, 1});
    EXPECT_EQ(rig.model->drafted.empty(), cheap);
    EXPECT_EQ(tree.drafted(), cheap ? 1 : 2);
    EXPECT_NE(tree.child(0, 10), kNoNode);
  }
}

TEST(FuseDrafter, PassesEverythingOn) {
  Rig rig(2, 4);
  rig.index->prefills_needed = 3, rig.model->prefills_needed = 2;
  const Text text = {1, 2, 3};
  rig.fuse->open(0);
  rig.fuse->truncate(0, 2);
  EXPECT_FALSE(rig.fuse->prefill(0, text));
  EXPECT_FALSE(rig.fuse->prefill(0, text));
  EXPECT_TRUE(rig.fuse->prefill(0, text));
  const Outcome outcomes[2] = {};
  rig.fuse->observe(outcomes);
  rig.fuse->close(0);
  EXPECT_EQ(rig.fuse->level_ms(), 2);
  const DraftTimes times = rig.fuse->take_times();
  EXPECT_EQ(times.forward, 6);
  EXPECT_EQ(times.cache, 2);
  for (const Calls& c : {rig.model_calls, rig.index_calls}) {
    EXPECT_EQ(c.open, 1);
    EXPECT_EQ(c.close, 1);
    EXPECT_EQ(c.truncate, 1);
    EXPECT_EQ(c.prefill, 3);
    EXPECT_EQ(c.observe, 2);
  }
}

TEST(FuseDrafter, SetUpErrors) {
  Calls calls;
  EXPECT_THROW(make_fuse_drafter(nullptr, std::make_unique<FakeDrafter>(kFromIndex, calls), 1, 4), Error);
  EXPECT_THROW(make_fuse_drafter(std::make_unique<FakeDrafter>(kFromModel, calls), nullptr, 1, 4), Error);
  EXPECT_THROW(make_fuse_drafter(std::make_unique<FakeDrafter>(kFromModel, calls),
                                 std::make_unique<FakeDrafter>(kFromIndex, calls), 0, 4),
               Error);
}

// With a real index over a text that is copied, nothing is allocated, and the index learns that it is right although
// the trees are full of another drafter's nodes.
TEST(FuseDrafter, ARealIndexInsideLearnsAndAllocatesNothing) {
  std::mt19937 random(3);
  Calls calls;
  TreeConfig shape;
  shape.nodes = shape.depth = 12;
  auto model = std::make_unique<FakeDrafter>(kFromModel, calls);
  model->drafted.reserve(10000);
  for (int i = 0; i < 12; ++i) model->drafts[0].push_back({i / 2, 1000 + i, float(-0.2 * (i + 1))});
  const auto fuse = make_fuse_drafter(std::move(model), make_suffix_drafter({}, shape, {1, 8000, 2000}), 1, 12);
  Text truth;
  for (int i = 0; i < 1000; ++i) truth.push_back(Token(random() % 900));
  for (int i = 0; i < 1000; ++i) truth.push_back(truth[size_t(i)]);
  TokenTree tree(13);
  std::vector<NodeId> path;
  path.reserve(20);
  fuse->open(0);
  const long before = g_allocations.load();
  float first_score = 0, last_score = -9;
  for (size_t at = 1040; at < truth.size(); ++at) {
    tree.reset(truth[at - 1]);
    DraftTask task;
    task.text = std::span(truth).first(at), task.limits = {12, 12, nullptr, 0}, task.tree = &tree;
    fuse->draft({&task, 1});
    const NodeId right = tree.child(0, truth[at]);
    ASSERT_NE(right, kNoNode);
    ASSERT_EQ(tree.source(right), kFromIndex);
    last_score = tree.score(right);
    if (first_score == 0) first_score = last_score;
    path.assign(1, 0);
    for (NodeId c; at < truth.size() && (c = tree.child(path.back(), truth[at])) != kNoNode; ++at) path.push_back(c);
    const Outcome outcome{0, &tree, path, at < truth.size() ? truth[at] : kNoToken};
    fuse->observe({&outcome, 1});
  }
  EXPECT_EQ(g_allocations.load(), before);
  EXPECT_LT(first_score, std::log(0.97f));
  EXPECT_GT(last_score, std::log(0.98f));
}

}  // namespace
}  // namespace sx
