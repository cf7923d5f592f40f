// Acceptance of trees of logits: match against plain decoding, the lossy rules against their definitions, and the rules
// on distributions as they run on a backend: a pure function of seed and position, greedy where the target is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "backend/registry.h"
#include "speculative/accept/accept.h"
#include "support/forwarding_backend.h"
#include "support/reference_backend.h"

namespace sx {
namespace {

constexpr AcceptKind kProbabilityKinds[] = {AcceptKind::kChain, AcceptKind::kBlockwise, AcceptKind::kSpecInfer,
                                            AcceptKind::kNoReplacement, AcceptKind::kTraversal};

std::map<Token, int> as_map(std::span<const TokenCount> counts) {
  std::map<Token, int> map;
  for (const TokenCount& c : counts) map[c.token] = c.count;
  return map;
}

// A text, a tree after it, and logits for its nodes.
struct Scene {
  Scene(std::mt19937_64& random, int vocabulary, int nodes) : vocab(vocabulary), tree(nodes) {
    std::normal_distribution<float> normal(0, 2);
    for (int i = int(random() % 30); i >= 0; --i) text.push_back(Token(random() % uint64_t(vocab)));
    tree.reset(text.back());
    while (!tree.full()) {  // sometimes bushy, sometimes deep; duplicates among siblings occur
      const int back = int(random() % uint64_t(tree.size()));
      tree.add(random() % 2 ? tree.size() - 1 : back, Token(random() % uint64_t(vocab)), 0);
    }
    fill_logits([&] { return normal(random); });
    sampling.seed = random();
  }
  template <class Next>
  void fill_logits(Next next) {
    logits.resize(size_t(tree.size()) * size_t(vocab));
    for (float& x : logits) x = next();
  }
  void random_penalties(std::mt19937_64& random) {
    sampling.repeat_penalty = random() % 2 ? 1.3f : 1.0f;
    sampling.presence_penalty = random() % 2 ? 0.7f : 0.0f;
    sampling.frequency_penalty = random() % 2 ? 0.4f : 0.0f;
    const int windows[] = {-1, 0, 1, 2, 5, 64};
    last_n = windows[random() % 6];
    if (random() % 2) bias = {{Token(random() % uint64_t(vocab)), 1.5f}, {Token(random() % uint64_t(vocab)), -2.0f}};
  }
  PenaltyWindow window() const {
    PenaltyWindow made(vocab, last_n);
    for (Token t : text) made.push(t);
    return made;
  }
  AcceptArgs args(PenaltyWindow* w) const {
    AcceptArgs a;
    a.tree = &tree, a.logits = logits.data(), a.vocab = vocab, a.position = text.size(), a.sampling = &sampling;
    a.bias = bias, a.window = w;
    return a;
  }
  std::vector<Token> text_to(NodeId node) const {
    if (node == 0) return text;
    std::vector<Token> to = text_to(tree.parent(node));
    to.push_back(tree.token(node));
    return to;
  }
  std::vector<TokenCount> counts_of(const std::vector<Token>& whole) const {
    std::map<Token, int> counted;
    const size_t n = last_n < 0 ? whole.size() : std::min(whole.size(), size_t(last_n));
    for (size_t i = whole.size() - n; i < whole.size(); ++i) ++counted[whole[i]];
    std::vector<TokenCount> counts;
    for (const auto& [token, count] : counted) counts.push_back({token, count});
    return counts;
  }
  // What plain decoding writes after the text of a node, counting from scratch.
  Token plain_choice(Backend& backend, NodeId node) const {
    const std::vector<Token> whole = text_to(node);
    const std::vector<TokenCount> counts = counts_of(whole);
    const ChooseRow row{logits.data() + size_t(node) * size_t(vocab), whole.size(), &sampling, bias, counts};
    Token out = kNoToken;
    backend.choose({&out, std::span(&row, 1), vocab});
    return out;
  }
  // The target's distribution without filters, from the definition.
  std::vector<double> plain_distribution(NodeId node, double temperature) const {
    std::vector<double> x(static_cast<size_t>(vocab));
    for (size_t t = 0; t < x.size(); ++t) x[t] = double(logits[size_t(node) * x.size() + t]);
    for (const TokenBias& b : bias) x[size_t(b.token)] += double(b.bias);
    for (const TokenCount& c : counts_of(text_to(node))) {
      double& logit = x[size_t(c.token)];
      logit = logit > 0 ? logit / double(sampling.repeat_penalty) : logit * double(sampling.repeat_penalty);
      logit -= double(sampling.presence_penalty) + double(sampling.frequency_penalty) * c.count;
    }
    double sum = 0;
    for (double& v : x) sum += v = std::exp(v / temperature);
    for (double& v : x) v /= sum;
    return x;
  }

  int vocab, last_n = 0;
  std::vector<Token> text;
  TokenTree tree;
  std::vector<float> logits;
  Sampling sampling;
  std::vector<TokenBias> bias;
};

class AcceptTrees : public ::testing::TestWithParam<bool> {
 protected:
  AcceptTrees() : backend_(GetParam() ? make_cpu_backend({1, std::nullopt}) : make_reference_backend()) {
    StepLimits limits;
    limits.rows = 1, limits.vocab = 64;
    backend_->reserve(limits);
  }
  std::unique_ptr<Acceptance> make(AcceptKind kind, const Scene& scene, AcceptConfig config = {}) {
    config.kind = kind;
    return make_acceptance(config, *backend_, {scene.vocab, scene.tree.size(), scene.tree.max_depth()});
  }
  // Accepts with a penalty window, and checks that the window is left as it was.
  AcceptResult accept(Acceptance& rule, const Scene& scene, const DraftProbs* distributions = nullptr) {
    PenaltyWindow window = scene.window();
    AcceptResult result;
    AcceptArgs args = scene.args(&window);
    args.draft_probs = distributions;
    rule.accept(args, result);
    PenaltyWindow fresh = scene.window();
    EXPECT_EQ(as_map(window.counts()), as_map(fresh.counts()));
    for (Token t = 0; t < 3; ++t) {  // it goes on as if nothing had been
      window.push(t), fresh.push(t);
      EXPECT_EQ(as_map(window.counts()), as_map(fresh.counts()));
    }
    return result;
  }
  const std::unique_ptr<Backend> backend_;
};

TEST_P(AcceptTrees, MatchIsPlainDecoding) {
  std::mt19937_64 random(1);
  size_t longest = 0;
  for (int trial = 0; trial < 600; ++trial) {
    Scene scene(random, 2 + int(random() % 9), 1 + int(random() % 40));
    scene.random_penalties(random);
    scene.sampling.temperature = random() % 2 ? 0 : 0.9f;
    if (random() % 3 == 0) scene.sampling.top_k = 3, scene.sampling.top_p = 0.9f;
    std::vector<NodeId> path{0};
    Token next = kNoToken;
    for (bool found = true; found;) {
      next = scene.plain_choice(*backend_, path.back());
      found = false;
      for (NodeId n = 1; n < scene.tree.size() && !found; ++n)
        if ((found = scene.tree.parent(n) == path.back() && scene.tree.token(n) == next)) path.push_back(n);
    }
    const auto match = make(AcceptKind::kMatch, scene);
    EXPECT_TRUE(match->lossless());
    EXPECT_EQ(match->draws(), DrawMode::kBest);
    const AcceptResult result = accept(*match, scene);
    ASSERT_EQ(result.path, path) << trial;
    ASSERT_EQ(result.next, next) << trial;
    longest = std::max(longest, path.size());
  }
  EXPECT_GE(longest, 6u);
}

// Several requests at once are given what each gets alone, with calls of choose() as for the deepest of them.
TEST_P(AcceptTrees, WalksInStepAreWalksAlone) {
  struct Counting final : testing::ForwardingBackend {
    explicit Counting(std::unique_ptr<Backend> right) : ForwardingBackend(std::move(right)) {}
    int calls = 0;
    void choose(const ChooseArgs& a) override { ++calls, right_->choose(a); }
  };
  StepLimits limits;
  limits.rows = 64, limits.vocab = 64;
  Counting backend(GetParam() ? make_cpu_backend({1, std::nullopt}) : make_reference_backend());
  backend.reserve(limits);
  std::mt19937_64 random(7);
  size_t longest = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const int vocab = 2 + int(random() % 9);
    std::vector<std::unique_ptr<Scene>> scenes;
    std::vector<PenaltyWindow> windows;
    for (int i = 0; i < 9; ++i) {
      scenes.push_back(std::make_unique<Scene>(random, vocab, 1 + int(random() % 30)));
      scenes.back()->random_penalties(random);
      scenes.back()->sampling.temperature = random() % 2 ? 0 : 0.9f;
      windows.push_back(scenes.back()->window());
    }
    MatchWalks walks(backend, 9, 9 * 30);
    std::vector<AcceptResult> results(scenes.size());
    size_t deepest = 0;
    for (size_t i = 0; i < scenes.size(); ++i) walks.add(scenes[i]->args(&windows[i]), results[i]);
    backend.calls = 0;
    walks.run();
    for (size_t i = 0; i < scenes.size(); ++i) {
      const AcceptResult alone = accept(*make(AcceptKind::kMatch, *scenes[i]), *scenes[i]);
      ASSERT_EQ(results[i].path, alone.path) << trial << ' ' << i;
      ASSERT_EQ(results[i].next, alone.next) << trial << ' ' << i;
      EXPECT_EQ(as_map(windows[i].counts()), as_map(scenes[i]->window().counts()));
      deepest = std::max(deepest, alone.path.size());
    }
    EXPECT_EQ(size_t(backend.calls), deepest);
    longest = std::max(longest, deepest);
    walks.run();  // nothing is left of them
    EXPECT_EQ(size_t(backend.calls), deepest);
  }
  EXPECT_GE(longest, 4u);
}

TEST_P(AcceptTrees, MatchNeedsNoWindow) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 50; ++trial) {
    const Scene scene(random, 5, 20);
    const auto match = make(AcceptKind::kMatch, scene);
    AcceptResult result;
    match->accept(scene.args(nullptr), result);
    const AcceptResult expected = accept(*match, scene);
    EXPECT_EQ(result.path, expected.path);
    EXPECT_EQ(result.next, expected.next);
  }
}

TEST_P(AcceptTrees, TypicalTakesTheLongestTypicalPath) {
  std::mt19937_64 random(3);
  AcceptConfig config;
  int beyond_greedy = 0;
  for (int trial = 0; trial < 400; ++trial) {
    Scene scene(random, 3 + int(random() % 12), 2 + int(random() % 30));
    scene.random_penalties(random);
    scene.sampling.temperature = trial % 2 ? 0.7f : 0;
    config.epsilon = 0.05f + 0.1f * float(trial % 3);
    std::vector<NodeId> best{0};
    double best_score = 0;
    for (NodeId leaf = 1; leaf < scene.tree.size(); ++leaf) {
      std::vector<NodeId> path;
      double score = 0;
      bool typical = true;
      for (NodeId n = leaf; n != 0; n = scene.tree.parent(n)) {
        const NodeId parent = scene.tree.parent(n);
        const std::vector<double> p = scene.plain_distribution(parent, scene.sampling.temperature > 0 ? 0.7f : 1);
        double entropy = 0;
        for (double v : p) entropy -= v * std::log(v);
        const double mine = p[size_t(scene.tree.token(n))];
        typical &= mine > std::min(double(config.epsilon), double(config.alpha) * std::exp(-entropy)) ||
                   (scene.sampling.temperature == 0 && scene.plain_choice(*backend_, parent) == scene.tree.token(n));
        score += std::log(mine);
        path.insert(path.begin(), n);
      }
      path.insert(path.begin(), 0);
      if (!typical || path.size() < best.size()) continue;
      if (path.size() == best.size() && score <= best_score + 1e-9) continue;  // duplicates: the first one stays
      best = path, best_score = score;
    }
    const auto rule = make(AcceptKind::kTypical, scene, config);
    EXPECT_FALSE(rule->lossless());
    const AcceptResult result = accept(*rule, scene);
    ASSERT_EQ(result.path, best) << trial;
    ASSERT_EQ(result.next, scene.plain_choice(*backend_, best.back())) << trial;
    beyond_greedy += best.size() > accept(*make(AcceptKind::kMatch, scene), scene).path.size();
  }
  EXPECT_GT(beyond_greedy, 50);
}

TEST_P(AcceptTrees, MarginLetsANearlyEqualSecondPass) {
  std::mt19937_64 random(4);
  AcceptConfig config;
  int relaxed = 0;
  for (int trial = 0; trial < 600; ++trial) {
    Scene scene(random, 3 + int(random() % 6), 2 + int(random() % 30));
    scene.random_penalties(random);
    scene.sampling.temperature = trial % 2 ? 0.7f : 0;
    config.margin = 0.2f + 0.3f * float(trial % 3);
    std::vector<NodeId> path{0};
    Token next = kNoToken;
    for (NodeId node = 0; node != kNoNode;) {
      next = scene.plain_choice(*backend_, node);
      const NodeId parent = node;
      node = scene.tree.child(parent, next);
      if (node == kNoNode) {
        const std::vector<double> p = scene.plain_distribution(parent, scene.sampling.temperature > 0 ? 0.7f : 1);
        std::vector<Token> order(p.size());
        for (size_t t = 0; t < p.size(); ++t) order[t] = Token(t);
        std::sort(order.begin(), order.end(), [&](Token a, Token b) { return p[size_t(a)] > p[size_t(b)]; });
        if (p[size_t(order[1])] >= double(config.margin) * p[size_t(order[0])])
          node = scene.tree.child(parent, order[1]);
        relaxed += node != kNoNode;
      }
      if (node != kNoNode) path.push_back(node);
    }
    const auto rule = make(AcceptKind::kMargin, scene, config);
    EXPECT_FALSE(rule->lossless());
    const AcceptResult result = accept(*rule, scene);
    ASSERT_EQ(result.path, path) << trial;
    ASSERT_EQ(result.next, next) << trial;
  }
  EXPECT_GT(relaxed, 50);
}

// --- Rules on distributions.

// Grows the scene's tree anew by draws from random distributions, which are kept as a drafter keeps them.
DraftProbs draw_tree(std::mt19937_64& random, Scene& scene, DrawMode mode, bool chain) {
  std::normal_distribution<float> normal(0, 1.5f);
  DraftProbs distributions(scene.tree.capacity(), scene.vocab);
  scene.tree.reset(scene.text.back());
  for (NodeId n = 0; n < scene.tree.size(); ++n) {
    float* q = distributions.row(n);
    float sum = 0;
    for (int t = 0; t < scene.vocab; ++t) sum += q[t] = std::exp(normal(random));
    for (int t = 0; t < scene.vocab; ++t) q[t] /= sum;
    std::vector<double> left(q, q + scene.vocab);
    for (int i = chain ? 1 : int(random() % uint64_t(std::min(4, scene.vocab + 1))); i > 0 && !scene.tree.full(); --i) {
      const Token x = Token(std::discrete_distribution<int>(left.begin(), left.end())(random));
      scene.tree.add(n, x, 0);
      if (mode == DrawMode::kDistinct) left[size_t(x)] = 0;
    }
  }
  return distributions;
}

bool needs_chain(AcceptKind kind) { return kind == AcceptKind::kChain || kind == AcceptKind::kBlockwise; }

TEST_P(AcceptTrees, DistributionRulesArePureFunctionsOfSeedAndPosition) {
  std::mt19937_64 random(5);
  for (AcceptKind kind : kProbabilityKinds) {
    int by_seed = 0, by_position = 0, accepted = 0;
    for (int trial = 0; trial < 60; ++trial) {
      Scene scene(random, 4 + int(random() % 5), 8);
      scene.random_penalties(random);
      scene.sampling.temperature = 0.9f;
      const auto rule = make_acceptance({kind}, *backend_, {scene.vocab, 8, 7});
      EXPECT_TRUE(rule->lossless());
      const DraftProbs distributions = draw_tree(random, scene, rule->draws(), needs_chain(kind));
      const AcceptResult first = accept(*rule, scene, &distributions), again = accept(*rule, scene, &distributions);
      EXPECT_EQ(first.path, again.path);
      EXPECT_EQ(first.next, again.next);
      accepted += int(first.path.size()) - 1;
      Scene other = scene;
      other.sampling.seed ^= 1;
      const AcceptResult seeded = accept(*rule, other, &distributions);
      by_seed += seeded.path != first.path || seeded.next != first.next;
      Scene later = scene;
      later.last_n = 0;  // the text counts by its length only
      const AcceptResult here = accept(*rule, later, &distributions);
      later.text.push_back(0);
      const AcceptResult there = accept(*rule, later, &distributions);
      by_position += here.path != there.path || here.next != there.next;
    }
    EXPECT_GT(by_seed, 10) << int(kind);
    EXPECT_GT(by_position, 10) << int(kind);
    EXPECT_GT(accepted, 10) << int(kind);
  }
}

TEST_P(AcceptTrees, DistributionRulesAreGreedyAtTemperatureZero) {
  std::mt19937_64 random(6);
  for (AcceptKind kind : kProbabilityKinds) {
    int accepted = 0;
    for (int trial = 0; trial < 100; ++trial) {
      Scene scene(random, 2 + int(random() % 4), 12);
      scene.random_penalties(random);
      const auto rule = make_acceptance({kind}, *backend_, {scene.vocab, 12, 11});
      const DraftProbs distributions = draw_tree(random, scene, rule->draws(), needs_chain(kind));
      const AcceptResult result = accept(*rule, scene, &distributions),
                         greedy = accept(*make(AcceptKind::kMatch, scene), scene);
      ASSERT_EQ(result.path, greedy.path) << int(kind) << " " << trial;
      ASSERT_EQ(result.next, greedy.next) << int(kind) << " " << trial;
      accepted += int(result.path.size()) - 1;
    }
    EXPECT_GT(accepted, 20) << int(kind);
  }
}

// The first token emitted follows the target's distribution: coins and draws of the keyed random are fair, penalties
// are in the distribution.
TEST_P(AcceptTrees, FirstTokenFollowsTheTarget) {
  std::mt19937_64 random(7);
  for (AcceptKind kind : kProbabilityKinds) {
    Scene scene(random, 5, 3);
    scene.sampling.temperature = 0.8f, scene.sampling.presence_penalty = 0.5f, scene.last_n = -1;
    const auto rule = make_acceptance({kind}, *backend_, {5, 3, 2});
    const std::vector<double> p = scene.plain_distribution(0, double(scene.sampling.temperature));
    std::vector<int> hits(5, 0);
    const int n = 6000;
    PenaltyWindow window = scene.window();
    AcceptResult result;
    for (int i = 0; i < n; ++i) {
      const DraftProbs distributions = draw_tree(random, scene, rule->draws(), needs_chain(kind));
      scene.sampling.seed = uint64_t(i);
      AcceptArgs args = scene.args(&window);
      args.draft_probs = &distributions;
      rule->accept(args, result);
      ++hits[size_t(result.path.size() > 1 ? scene.tree.token(result.path[1]) : result.next)];
    }
    double chi = 0;
    for (size_t t = 0; t < p.size(); ++t) chi += std::pow(hits[t] - n * p[t], 2) / (n * p[t]);
    EXPECT_LT(chi, 23.5) << int(kind);  // 4 degrees of freedom, p = 0.0001; the seeds are fixed
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, AcceptTrees, ::testing::Values(true, false),
                         [](const auto& tested) { return tested.param ? "cpu" : "reference"; });

}  // namespace
}  // namespace sx
