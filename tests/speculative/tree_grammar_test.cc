// Grammars along trees: masks of nodes, pruning, forced tokens, and every rule of acceptance and drafter's guess under
// a grammar.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <future>
#include <random>

#include "backend/registry.h"
#include "base/clock.h"
#include "speculative/accept/accept.h"
#include "speculative/draft/candidates.h"
#include "speculative/tree/tree_grammar.h"
#include "support/no_threads.h"
#include "support/reference_backend.h"

namespace sx {
namespace {

// Tokens: a b c ab bc abc, an end, a control token, another end.
const std::vector<std::string> kBytes = {"a", "b", "c", "ab", "bc", "abc", "</s>", "", "<eot>"};
constexpr Token kA = 0, kB = 1, kC = 2, kAb = 3, kBc = 4, kAbc = 5, kEnd = 6, kControl = 7, kEot = 8;
constexpr int kVocab = 9;

std::shared_ptr<GrammarMatcher> matcher(const std::string& gbnf, const GrammarLimits& limits = {}) {
  const std::vector<Token> ends = {kEnd, kEot};
  return std::make_shared<GrammarMatcher>(gbnf, std::make_shared<const TokenTrie>(kBytes, ends, kVocab), limits);
}

// Behind "bbbb" a text can be read in 2^20 ways.
std::string hard_grammar() {
  std::string grammar = "root ::= \"bbbb\" r0 | \"a\" [abc]{0,20}\nr20 ::= \"c\"\n";
  for (int i = 0; i < 20; ++i) grammar += fmt::format("r{0} ::= r{1} \"a\" | r{1} \"b\"\n", i, i + 1);
  return grammar;
}

std::vector<Token> allowed(const uint32_t* mask) {
  std::vector<Token> out;
  for (Token t = 0; t < kVocab; ++t)
    if (TreeGrammar::allows(mask, t)) out.push_back(t);
  return out;
}

TEST(TreeGrammar, MasksAlongATree) {
  TreeGrammar grammar(matcher("root ::= \"ab\" \"c\"? \"a\"?"));
  TokenTree tree(16);
  tree.reset(kC);  // the prompt's last token, not part of the answer
  const NodeId a = tree.add(0, kA, 0), ab = tree.add(0, kAb, 0), b = tree.add(a, kB, 0), wrong = tree.add(a, kC, 0);
  const NodeId end = tree.add(ab, kEot, 0), below = tree.add(wrong, kA, 0);
  EXPECT_EQ(allowed(grammar.mask(tree, 0)), (std::vector<Token>{kA, kAb, kAbc}));
  EXPECT_EQ(allowed(grammar.mask(tree, a)), (std::vector<Token>{kB, kBc}));
  EXPECT_EQ(allowed(grammar.mask(tree, ab)), (std::vector<Token>{kA, kC, kEnd, kEot}));
  EXPECT_EQ(grammar.mask(tree, b), grammar.mask(tree, ab));  // one state, one mask
  for (NodeId n : {wrong, end, below}) EXPECT_EQ(allowed(grammar.mask(tree, n)), (std::vector<Token>{kEnd, kEot}));
  grammar.begin();
  tree.reset(kC);  // another tree: nothing is remembered by node
  const NodeId abc = tree.add(0, kAbc, 0);
  EXPECT_EQ(allowed(grammar.mask(tree, abc)), (std::vector<Token>{kA, kEnd, kEot}));
  EXPECT_TRUE(grammar.accept(kAbc));
  tree.reset(kAbc);
  EXPECT_EQ(allowed(grammar.mask(tree, 0)), (std::vector<Token>{kA, kEnd, kEot}));
  EXPECT_FALSE(grammar.done());
  EXPECT_TRUE(grammar.accept(kA));
  EXPECT_TRUE(grammar.done());  // only the end is left
  EXPECT_TRUE(grammar.accept(kEot));
  EXPECT_TRUE(grammar.done());
  EXPECT_FALSE(grammar.accept(kA));
  TreeGrammar other(matcher("root ::= \"ab\""));
  EXPECT_FALSE(other.accept(kEnd));  // too early
  TreeGrammar third(matcher("root ::= \"ab\""));
  EXPECT_FALSE(third.accept(kControl));
}

TEST(TreeGrammar, PruneDropsWhatIsForbidden) {
  TreeGrammar grammar(matcher("root ::= \"ab\" \"c\"? \"a\"?"));
  TokenTree tree(32);
  tree.reset(kC);
  const NodeId a = tree.add(0, kA, -1), b = tree.add(0, kB, -1), ab = tree.add(0, kAb, -1);
  tree.add(b, kC, -2);  // goes with its parent
  const NodeId bc = tree.add(a, kBc, -2), end = tree.add(ab, kEnd, -2);
  tree.add(end, kA, -3);  // nothing follows the end
  tree.add(a, kEnd, -3);  // too early
  tree.add(bc, kA, -3);
  tree.add(bc, kControl, -3);
  grammar.prune(tree);
  ASSERT_EQ(tree.size(), 6);
  const std::vector<Token> tokens(tree.tokens().begin(), tree.tokens().end());
  EXPECT_EQ(tokens, (std::vector<Token>{kC, kA, kAb, kBc, kEnd, kA}));
  EXPECT_EQ(tree.parent(3), 1);
  EXPECT_EQ(tree.parent(4), 2);
  EXPECT_EQ(tree.parent(5), 3);
  grammar.prune(tree);
  EXPECT_EQ(tree.size(), 6);
}

TEST(TreeGrammar, ForcedTokens) {
  TreeGrammar grammar(matcher("root ::= (\"a\" | \"b\") \"abcab\" \"c\"?"));
  EXPECT_TRUE(grammar.forced_tokens(8).empty());
  EXPECT_TRUE(grammar.accept(kB));
  EXPECT_EQ(grammar.forced_tokens(8), (std::vector<Token>{kAbc, kAb}));
  EXPECT_EQ(grammar.forced_tokens(1), (std::vector<Token>{kAbc}));
  EXPECT_TRUE(grammar.forced_tokens(0).empty());
}

// A grammar that cannot be followed everywhere: only texts that lead there have to do with it.
TEST(TreeGrammar, FailuresAreThoseOfNodes) {
  TreeGrammar grammar(matcher(hard_grammar()));
  TokenTree tree(16);
  tree.reset(kC);
  tree.add(0, kA, 0);
  NodeId b = 0;
  std::vector<NodeId> bs;
  for (int i = 0; i < 4; ++i) bs.push_back(b = tree.add(b, kB, 0));
  const NodeId below = tree.add(b, kC, 0);
  EXPECT_EQ(allowed(grammar.mask(tree, 0)), (std::vector<Token>{kA, kB, kAb, kAbc}));
  EXPECT_EQ(allowed(grammar.mask(tree, bs[0])), (std::vector<Token>{kB}));
  // After three of them the next byte leads there, and after four it has.
  for (NodeId n : {bs[2], bs[3], below}) {
    EXPECT_EQ(grammar.draft_mask(tree, n), nullptr);
    EXPECT_EQ(grammar.failure(n), nullptr);
    EXPECT_EQ(allowed(grammar.mask(tree, n)), (std::vector<Token>{kEnd, kEot}));
    ASSERT_NE(grammar.failure(n), nullptr);
    EXPECT_NE(grammar.failure(n)->why.find("too ambiguous"), std::string::npos);
  }
  EXPECT_EQ(grammar.failure(0), nullptr);
  EXPECT_EQ(grammar.failure(bs[0]), nullptr);
  grammar.begin();
  EXPECT_EQ(grammar.failure(bs[3]), nullptr);
  grammar.prune(tree);
  const std::vector<Token> tokens(tree.tokens().begin(), tree.tokens().end());
  EXPECT_EQ(tokens, (std::vector<Token>{kC, kA, kB, kB, kB}));
  EXPECT_TRUE(grammar.accept(kB));
  EXPECT_EQ(grammar.forced_tokens(8), (std::vector<Token>{kB, kB, kB}));  // and then what cannot be followed
  TreeGrammar other(matcher(hard_grammar()));
  EXPECT_TRUE(other.accept(kA));
  tree.reset(kA);
  EXPECT_EQ(allowed(other.mask(tree, 0)).size(), 8u);
  EXPECT_EQ(other.failure(0), nullptr);
}

// Drafts of a round together take no more work than one mask may.
TEST(TreeGrammar, DraftsShareTheWorkOfARound) {
  const char* const kCounted = "root ::= [ab]{1,20} \"c\" [ab]{1,20}";
  TokenTree tree(16);
  tree.reset(kC);
  for (NodeId n = 0; !tree.full();) n = tree.add(n, kA, 0);
  TreeGrammar free(matcher(kCounted));
  free.begin();
  free.mask(tree, 0);
  const uint64_t one = free.spent();
  free.mask(tree, 0);
  EXPECT_EQ(free.spent(), one);  // counts once
  EXPECT_TRUE(free.allows_drafts());
  for (NodeId n = 1; n < tree.size(); ++n) ASSERT_NE(free.draft_mask(tree, n), nullptr);
  const auto m = matcher(kCounted, {.work = 4 * one});
  std::vector<int> sizes, masks;
  for (int again = 0; again < 3; ++again) {  // what is kept changes nothing
    TreeGrammar grammar(m);
    int found = 0;
    for (NodeId n = 0; n < tree.size(); ++n) found += grammar.draft_mask(tree, n) != nullptr;
    EXPECT_FALSE(grammar.allows_drafts());
    EXPECT_EQ(allowed(grammar.mask(tree, NodeId(tree.size() - 1))), allowed(free.mask(tree, NodeId(tree.size() - 1))));
    EXPECT_EQ(grammar.failure(NodeId(tree.size() - 1)), nullptr);  // what the text needs is always found
    masks.push_back(found);
    TokenTree pruned = tree;
    grammar.prune(pruned);
    EXPECT_EQ(pruned.size(), 1);
    grammar.begin();
    grammar.prune(pruned = tree);
    sizes.push_back(pruned.size());
  }
  EXPECT_GE(masks[0], 3);
  EXPECT_LE(masks[0], 6);
  EXPECT_EQ(masks, std::vector<int>(3, masks[0]));
  EXPECT_EQ(sizes, std::vector<int>(3, sizes[0]));
}

// Who is not alone waits for a mask elsewhere: here there is no time at all for it, and another text of the grammar
// waits until the matcher is back.
TEST(TreeGrammar, ReadyWhenItsMaskIsThere) {
  const auto m = matcher("root ::= [ab]{1,20} \"c\"");
  Background background;
  TreeGrammar grammar(m, {}, &background), nobody(matcher("root ::= [ab]*"));
  EXPECT_TRUE(nobody.ready(0));  // there is no other thread
  const auto wait = [&](TreeGrammar& g) {
    int rounds = 0;
    for (uint64_t before = background.ended(); !g.ready(0); before = background.ended(), ++rounds)
      background.wait(before, std::chrono::milliseconds(100));
    return rounds;
  };
  EXPECT_GT(wait(grammar), 0);
  TokenTree tree(16);
  tree.reset(kC);
  const std::vector<Token> expected = allowed(grammar.mask(tree, 0));
  EXPECT_EQ(expected, (std::vector<Token>{kA, kB, kAb, kBc, kAbc}));
  EXPECT_TRUE(grammar.ready(0));
  EXPECT_FALSE(grammar.slow());  // it was short work
  grammar.begin();
  EXPECT_TRUE(grammar.accept(kA));
  EXPECT_FALSE(grammar.ready(0));
  {
    TreeGrammar other(m, {}, &background);
    wait(grammar);
    EXPECT_TRUE(other.ready(0));
  }
  EXPECT_TRUE(grammar.ready(now_ms() + 1e6));  // with time enough it is made at once
  EXPECT_TRUE(grammar.accept(kB));
  EXPECT_TRUE(grammar.ready(now_ms() + 1e6));
  EXPECT_FALSE(m->lent());
  grammar.accept(kC);
  EXPECT_TRUE(grammar.ready(0));  // nothing may follow
}

// Where the system gives no other thread, whoever asks makes the mask, and the next round has it.
TEST(TreeGrammar, ReadyWithoutAnotherThread) {
  const NoThreads none;
  Background background;
  TreeGrammar grammar(matcher("root ::= [ab]{1,20} \"c\""), {}, &background);
  EXPECT_FALSE(grammar.ready(0));
  EXPECT_FALSE(grammar.lent());
  EXPECT_TRUE(grammar.ready(0));
  TokenTree tree(4);
  tree.reset(kC);
  EXPECT_TRUE(TreeGrammar::allows(grammar.mask(tree, 0), kB));
}

// The requests that come and go meanwhile do not wait for the thread that has the matcher. Only the one whose mask it
// makes calls that off.
TEST(TreeGrammar, TextsComeAndGoWhileTheMatcherIsLent) {
  const auto m = matcher("root ::= [ab]{1,20} \"c\"");
  std::promise<void> go;
  Background background;
  background.add([&] { go.get_future().wait(); });
  {
    TreeGrammar grammar(m, {}, &background);
    grammar.accept(kA);
    EXPECT_FALSE(grammar.ready(0));
    {
      TreeGrammar other(m, {}, &background);
      EXPECT_FALSE(other.ready(now_ms() + 1e6));
      EXPECT_TRUE(other.lent());
    }
    EXPECT_TRUE(m->lent());
  }
  EXPECT_FALSE(m->lent());
  go.set_value();
}

// Texts of one grammar wait for one another until each has its mask, however few masks are kept otherwise.
TEST(TreeGrammar, AllTextsOfAGrammarAreReadyInTheEnd) {
  const auto m = matcher("root ::= [ab]{1,20} \"c\"", {.states = 2, .mask_bytes = 1});
  Background background;
  std::vector<std::unique_ptr<TreeGrammar>> texts;
  for (int i = 0; i < 8; ++i) {
    texts.push_back(std::make_unique<TreeGrammar>(m, nullptr, &background));
    for (int k = 0; k < i; ++k) texts.back()->accept(kA);
  }
  for (int round = 0; round < 5; ++round) {  // as a batch does it
    int waits = 0;
    for (bool all = false; !all; ++waits) {
      ASSERT_LT(waits, 40) << round;
      const uint64_t before = background.ended();
      all = true;
      for (auto& text : texts) all = text->ready(0) && all;
      if (!all) background.wait(before, std::chrono::hours(1));
    }
    EXPECT_FALSE(m->lent());
    TokenTree tree(4);
    tree.reset(kA);
    for (auto& text : texts) {
      text->begin();
      EXPECT_TRUE(TreeGrammar::allows(text->mask(tree, 0), kB));
      EXPECT_TRUE(text->accept(kB));
    }
  }
}

TEST(TreeGrammar, ACancelledRequestHasNoMask) {
  bool gone = true;
  TreeGrammar grammar(matcher("root ::= [ab]*"), [&] { return gone; });
  TokenTree tree(2);
  tree.reset(kC);
  EXPECT_EQ(grammar.draft_mask(tree, 0), nullptr);
  EXPECT_EQ(allowed(grammar.mask(tree, 0)), (std::vector<Token>{kEnd, kEot}));
  ASSERT_NE(grammar.failure(0), nullptr);
  EXPECT_EQ(grammar.failure(0)->why, "");
  gone = false;
  EXPECT_EQ(allowed(grammar.mask(tree, 0)), (std::vector<Token>{kA, kB, kAb, kEnd, kEot}));
  EXPECT_EQ(grammar.failure(0), nullptr);
}

class GrammarTrees : public ::testing::TestWithParam<bool> {
 protected:
  GrammarTrees() : backend_(GetParam() ? make_cpu_backend({1, std::nullopt}) : make_reference_backend()) {
    StepLimits limits;
    limits.rows = 1, limits.vocab = 64;
    backend_->reserve(limits);
  }
  const std::unique_ptr<Backend> backend_;
};

constexpr const char* kGrammars[] = {"root ::= \"ab\"* \"c\"", "root ::= [ab]{2,5}",
                                     "root ::= x\nx ::= \"a\" x \"b\" | \"c\" | \"\"", "root ::= (\"a\" | \"bc\")*"};

// A tree of random tokens, allowed and forbidden, and logits of its nodes.
struct Scene {
  Scene(std::mt19937_64& random, int nodes) : tree(nodes) {
    std::normal_distribution<float> normal(0, 2);
    tree.reset(kC);
    while (!tree.full())
      tree.add(random() % 2 ? tree.size() - 1 : NodeId(random() % uint64_t(tree.size())),
               Token(random() % (random() % 4 ? 3 : kVocab)), 0);
    logits.resize(size_t(nodes) * kVocab);
    for (float& x : logits) x = normal(random);
    sampling.seed = random();
  }
  // What plain decoding chooses at a node: forbidden tokens have no chance.
  Token plain_choice(Backend& backend, GrammarMatcher& m, NodeId node) const {
    std::vector<Token> path;
    for (NodeId n = node; n != 0; n = tree.parent(n)) path.insert(path.begin(), tree.token(n));
    auto state = m.start();
    for (Token t : path) state = m.advance(state, t);
    std::vector<float> row(logits.begin() + node * kVocab, logits.begin() + (node + 1) * kVocab);
    for (Token t = 0; t < kVocab; ++t)
      if (m.trie().is_end(t) ? !m.can_end(state) : !m.advance(state, t)) row[size_t(t)] = -INFINITY;
    const ChooseRow choose{row.data(), uint64_t(10 + tree.depth(node)), &sampling, {}, {}};
    Token out = kNoToken;
    backend.choose({&out, std::span(&choose, 1), kVocab});
    return out;
  }
  AcceptArgs args(TreeGrammar* grammar) const {
    AcceptArgs a;
    a.tree = &tree, a.logits = logits.data(), a.vocab = kVocab, a.position = 10, a.sampling = &sampling,
    a.grammar = grammar;
    return a;
  }
  TokenTree tree;
  std::vector<float> logits;
  Sampling sampling;
};

TEST_P(GrammarTrees, MatchIsPlainDecodingUnderTheGrammar) {
  std::mt19937_64 random(1);
  size_t longest = 0;
  int differs = 0;
  for (int trial = 0; trial < 400; ++trial) {
    Scene scene(random, 1 + int(random() % 120));
    scene.sampling.temperature = trial % 2 ? 0.8f : 0;
    const auto m = matcher(kGrammars[trial % 4]);
    std::vector<NodeId> path{0};
    Token next = scene.plain_choice(*backend_, *m, 0);
    for (NodeId child; (child = scene.tree.child(path.back(), next)) != kNoNode && !m->trie().is_end(next);) {
      path.push_back(child);
      next = scene.plain_choice(*backend_, *m, child);
    }
    TreeGrammar grammar(m);
    const auto match = make_acceptance({}, *backend_, {kVocab, 128, 127});
    AcceptResult result, free;
    match->accept(scene.args(&grammar), result);
    match->accept(scene.args(nullptr), free);
    // Behind an end token the walk may go on: the request stops there.
    if (result.path.size() > path.size()) {
      result.next = scene.tree.token(result.path[path.size()]);
      ASSERT_TRUE(m->trie().is_end(result.next));
      result.path.resize(path.size());
    }
    ASSERT_EQ(result.path, path) << trial;
    ASSERT_EQ(result.next, next) << trial;
    longest = std::max(longest, path.size());
    differs += free.path != path || free.next != next;
  }
  EXPECT_GE(longest, 3u);
  EXPECT_GT(differs, 100);
}

TEST_P(GrammarTrees, EveryRuleWritesTextsOfTheGrammar) {
  std::mt19937_64 random(2);
  constexpr AcceptKind kKinds[] = {AcceptKind::kMatch,         AcceptKind::kTypical,   AcceptKind::kMargin,
                                   AcceptKind::kChain,         AcceptKind::kBlockwise, AcceptKind::kSpecInfer,
                                   AcceptKind::kNoReplacement, AcceptKind::kTraversal};
  for (AcceptKind kind : kKinds) {
    int accepted = 0;
    for (int trial = 0; trial < 150; ++trial) {
      Scene scene(random, 12);
      scene.sampling.temperature = trial % 3 ? 0.9f : 0;
      const auto m = matcher(kGrammars[trial % 4]);
      AcceptConfig config;
      config.kind = kind;
      config.margin = 0.1f;
      const auto rule = make_acceptance(config, *backend_, {kVocab, 12, 11});
      DraftProbs distributions(12, kVocab);
      if (rule->draws() != DrawMode::kBest) {  // children as a drafter that knows nothing of the grammar draws them
        const bool chain = kind == AcceptKind::kChain || kind == AcceptKind::kBlockwise;
        scene.tree.reset(kC);
        for (NodeId n = 0; n < scene.tree.size(); ++n) {
          std::fill_n(distributions.row(n), kVocab, 1.0f / kVocab);
          const Token first = Token(random() % kVocab);
          for (int i = 0; i < (chain ? 1 : 2) && !scene.tree.full(); ++i) scene.tree.add(n, (first + i) % kVocab, 0);
        }
      }
      TreeGrammar grammar(m);
      AcceptResult result;
      AcceptArgs args = scene.args(&grammar);
      args.draft_probs = &distributions;
      rule->accept(args, result);
      TreeGrammar text(m);
      result.path.erase(result.path.begin());
      std::vector<Token> tokens;
      for (NodeId n : result.path) tokens.push_back(scene.tree.token(n));
      tokens.push_back(result.next);
      for (Token t : tokens) {
        ASSERT_TRUE(text.accept(t)) << int(kind) << " " << trial;
        if (m->trie().is_end(t)) break;
      }
      accepted += int(result.path.size());
    }
    EXPECT_GT(accepted, 15) << int(kind);
  }
}

TEST_P(GrammarTrees, GuessesAreAllowed) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal(0, 2);
  const std::vector<Token> map = {kC, kAbc, kA, kEnd, kAb};  // a drafter with a vocabulary of its own
  for (DrawMode draws : {DrawMode::kBest, DrawMode::kIid, DrawMode::kDistinct}) {
    for (bool mapped : {false, true}) {
      int none = 0, some = 0;
      const int vocab = mapped ? int(map.size()) : kVocab;
      CandidateFinder guesser(*backend_, {draws, true}, 3, 1, vocab, vocab,
                              mapped ? std::span<const Token>(map) : std::span<const Token>());
      float* logits = backend_->allocate(size_t(vocab), "test");
      DraftProbs distributions(4, kVocab);
      for (int trial = 0; trial < 200; ++trial) {
        Sampling sampling;
        sampling.temperature = trial % 2 || draws != DrawMode::kBest ? 0.9f : 0;
        sampling.seed = random();
        TreeGrammar grammar(matcher(trial % 3 ? "root ::= \"a\" \"bc\"" : "root ::= (\"ab\" | \"b\" | \"c\")+"));
        TokenTree tree(4);
        tree.reset(kC);
        const std::vector<Token> text(5, kC);
        const NodeId node = random() % 2 ? tree.add(0, kA, 0) : 0;
        for (int t = 0; t < vocab; ++t) logits[t] = normal(random);
        DraftTask task;
        task.text = text, task.sampling = &sampling, task.tree = &tree, task.distributions = &distributions,
        task.grammar = &grammar;
        guesser.prepare(logits, 1);
        const auto candidates = guesser.guess(task, node, 5, logits, 0);
        const uint32_t* mask = grammar.mask(tree, node);
        double sum = 0;
        for (const Candidate& c : candidates) {
          ASSERT_TRUE(TreeGrammar::allows(mask, c.token)) << int(draws) << " " << trial;
          sum += std::exp(double(c.logp));
        }
        if (draws != DrawMode::kIid) { EXPECT_LE(sum, 1 + 1e-5); }
        int possible = 0;
        for (int t = 0; t < vocab; ++t) possible += TreeGrammar::allows(mask, mapped ? map[size_t(t)] : t);
        ASSERT_EQ(candidates.empty(), possible == 0);
        if (draws == DrawMode::kBest && sampling.temperature == 0) {
          ASSERT_EQ(int(candidates.size()), std::min(3, possible));
        }
        ++(candidates.empty() ? none : some);
      }
      EXPECT_GT(some, 50);
      EXPECT_EQ(none > 20, mapped);  // after "a" the mapped one has no way to go on
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, GrammarTrees, ::testing::Values(true, false),
                         [](const auto& tested) { return tested.param ? "cpu" : "reference"; });

}  // namespace
}  // namespace sx
