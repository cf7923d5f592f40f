// The rules that keep the target's distribution, on the real weights of the default model: 10,000 seeded rounds each,
// drafted and accepted by the engine's own rules, and a chi-square test of what comes out against the target's
// distribution. Logits are a pure function of the text, so every text is run once and remembered. The same test must
// find out wrong rules.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "backend/registry.h"
#include "base/rng.h"
#include "model/model.h"
#include "speculative/accept/accept.h"
#include "speculative/draft/candidates.h"
#include "speculative/draft/drafter.h"
#include "speculative/tree/policy.h"

#include "chi_square.h"

namespace sx {
namespace {

using testing::chi_square_p, testing::Counts, testing::Fit, testing::fit, testing::Distribution;

TEST(ChiSquare, ProbabilitiesAreThoseOfTheTables) {
  EXPECT_NEAR(chi_square_p(3.841459, 1), 0.05, 1e-7);
  EXPECT_NEAR(chi_square_p(18.307038, 10), 0.05, 1e-7);
  EXPECT_NEAR(chi_square_p(124.342113, 100), 0.05, 1e-7);
  EXPECT_NEAR(chi_square_p(27.877165, 9), 0.001, 1e-8);
  EXPECT_NEAR(chi_square_p(2.167350, 7), 0.95, 1e-6);
}

TEST(ChiSquare, RareTokensShareBinsAndImpossibleOnesFail) {
  const Distribution distribution{{{1}, 0.001}, {{2}, 0.02}, {{3}, 0.029}, {{4}, 0.35}, {{5}, 0.6}};
  const Fit f = fit({{{2}, 3}, {{3}, 9}, {{4}, 60}, {{5}, 128}}, distribution);  // bins: 1 to 3, then 4, then 5
  EXPECT_EQ(f.samples, 200);
  EXPECT_EQ(f.freedom, 2);
  EXPECT_NEAR(f.statistic, 4.0 / 10 + 100.0 / 70 + 64.0 / 120, 1e-12);
  EXPECT_NEAR(f.p, std::exp(-f.statistic / 2), 1e-12);
  EXPECT_NEAR(f.distance, (0.2 + 1 + 3.2 + 10 + 8) / 400, 1e-12);
  EXPECT_EQ(fit({{{2}, 3}, {{3}, 9}, {{4}, 60}, {{5}, 127}, {{6}, 1}}, distribution).p, 0);
}

// --- Texts and their logits.

constexpr int kSamples = 10000;
constexpr int kBatch = 256;  // rows of one step
constexpr int kKept = 48;    // logits remembered of a row: more than top-k leaves, and all that a guess looks at

// "The weather in the mountains can change quickly, so hikers should always bring"
const std::vector<Token> kPrompt = {504, 3947, 281, 260, 8718, 416, 1363, 3112, 28, 588, 294, 40062, 868, 1811, 2635};

Sampling sampling_of(int sample) {
  Sampling s;
  s.temperature = 0.8f, s.top_k = 20, s.top_p = 0.95f;
  s.seed = mix64(uint64_t(sample) + 0x5eed);
  return s;
}

using Row = std::vector<std::pair<Token, float>>;  // the best tokens of a row and their logits
using Path = std::vector<Token>;                   // what follows the prompt

// The model run in one way: whole, or with layers left out. Rows are remembered by path.
class Language {
 public:
  Language(Backend& backend, Model& model, const LayerPlan& plan)
      : backend_(backend),
        model_(model),
        plan_(plan),
        history_(int(kPrompt.size()) - 1),
        kv_(backend.make_kv(model.kv_geometry(1, history_ + kBatch, backend.default_kv_type()))) {
    std::vector<int32_t> positions(static_cast<size_t>(history_));
    std::iota(positions.begin(), positions.end(), 0);
    const SeqRows all{0, history_, 0, 0, nullptr, 0};
    model_.forward({std::span(kPrompt).first(positions.size()), positions, std::span(&all, 1), {}}, *kv_, plan_);
    find({});
    run();
    for (const auto& [text, probability] : distribution({})) find(text);
    run();
  }

  // The row after a path; null if it was never run: then the next run() does.
  const Row* find(const Path& path) {
    const auto found = rows_.find(path);
    if (found != rows_.end()) return &found->second;
    missing_.insert(path);
    return nullptr;
  }
  const Distribution& distribution(const Path& path) const {
    return distributions_.at(path);
  }  // of the next token, after paths of up to one
  // Of the first two tokens.
  Distribution pair_distribution() const {
    Distribution pairs;
    for (const auto& [first, p] : distribution({}))
      for (const auto& [second, q] : distribution(first)) pairs[{first[0], second[0]}] = p * q;
    return pairs;
  }
  const std::set<Token>& tokens() const { return tokens_; }  // of all rows
  int passes() const { return passes_; }
  size_t texts() const { return rows_.size(); }

  void run() {
    TokenTree tree(kBatch);
    std::vector<std::pair<const Path*, NodeId>> ends;
    for (auto path = missing_.begin(); path != missing_.end();) {
      tree.reset(kPrompt.back());
      ends.clear();
      for (; path != missing_.end() && tree.size() + int(path->size()) <= kBatch; ++path)
        ends.emplace_back(&*path, add_path(tree, *path));
      step(tree, ends);
    }
    missing_.clear();
  }

 private:
  static NodeId add_path(TokenTree& tree, const Path& path) {
    NodeId node = 0;
    for (const Token token : path) {
      const NodeId child = tree.child(node, token);
      node = child != kNoNode ? child : tree.add(node, token, 0);
    }
    return node;
  }

  void step(TokenTree& tree, const std::vector<std::pair<const Path*, NodeId>>& ends) {
    std::vector<int32_t> positions, outputs;
    for (NodeId n = 0; n < tree.size(); ++n) positions.push_back(history_ + tree.depth(n));
    for (const auto& [path, node] : ends) outputs.push_back(node);
    const SeqRows tail{0, tree.size(), 0, history_, tree.ancestors(), tree.words()};
    const float* logits = model_.forward({tree.tokens(), positions, std::span(&tail, 1), outputs}, *kv_, plan_).logits;
    ++passes_;
    for (const auto& [path, node] : ends) {
      remember(*path, logits);
      logits += model_.config().vocab;
    }
  }

  void remember(const Path& path, const float* logits) {
    const int vocab = model_.config().vocab;
    std::vector<Candidate> best(kKept);
    backend_.top_k({best.data(), logits, 1, vocab, kKept});
    Row& row = rows_[path];
    for (const Candidate& c : best) {
      row.emplace_back(c.token, logits[c.token]);
      tokens_.insert(c.token);
    }
    if (path.size() > 1) return;
    const Sampling sampling = sampling_of(0);
    std::vector<double> distribution(static_cast<size_t>(vocab));
    backend_.probabilities({distribution.data(), {logits, 0, &sampling, {}, {}}, vocab});
    for (int t = 0; t < vocab; ++t)
      if (distribution[size_t(t)] > 0) distributions_[path][{t}] = distribution[size_t(t)];
  }

  Backend& backend_;
  Model& model_;
  const LayerPlan plan_;
  const int history_;  // cells of the prompt but for its last token, which is pending
  std::unique_ptr<KvStore> kv_;
  std::map<Path, Row> rows_;
  std::map<Path, Distribution> distributions_;  // made from whole rows
  std::set<Path> missing_;
  std::set<Token> tokens_;
  int passes_ = 0;
};

// --- Rounds.

// What TriForce does: a rejected token is followed by a draw from the target's distribution instead of what is left of
// it.
class PlainResidual final : public Acceptance {
 public:
  explicit PlainResidual(Backend& backend) : backend_(backend) {}
  DrawMode draws() const override { return DrawMode::kIid; }

  void accept(const AcceptArgs& a, AcceptResult& result) override {
    std::vector<double> p(static_cast<size_t>(a.vocab));
    uint64_t counter = 0;
    const auto uniform = [&] { return uniform_from(hash_key(~a.sampling->seed, a.position, counter++)); };
    result.path.clear();
    for (NodeId node = 0; node != kNoNode;) {
      result.path.push_back(node);
      backend_.probabilities(
          {p.data(), {a.logits + size_t(node) * size_t(a.vocab), a.position, a.sampling, {}, {}}, a.vocab});
      const NodeId child = a.tree->first_child(node);
      const auto x = child == kNoNode ? 0 : size_t(a.tree->token(child));
      node = child != kNoNode && uniform() * double(a.draft_probs->row(node)[x]) < p[x] ? child : kNoNode;
    }
    double above = uniform();
    result.next = 0;
    while (above > p[size_t(result.next)] && result.next + 1 < a.vocab) above -= p[size_t(result.next++)];
  }

 private:
  Backend& backend_;
};

struct Method {
  const char* name;
  AcceptKind kind;
  std::vector<int> widths;             // of the tree, by level
  std::optional<DrawMode> draws = {};  // instead of the rule's own
  bool plain_residual = false;         // instead of the rule
};

TreeConfig tree_of(const Method& method) {
  TreeConfig config;
  const bool chain = std::ranges::all_of(method.widths, [](int w) { return w == 1; });
  config.kind = chain ? TreeKind::kChain : TreeKind::kStatic;
  config.nodes = config.depth = int(method.widths.size());
  config.widths = method.widths;
  return config;
}

struct Sample {
  Token first = kNoToken, second = kNoToken;
  int accepted = 0;  // drafted tokens, in the first round
  bool done = false;
  bool operator==(const Sample&) const = default;
};

// Drafts and accepts over a part of the vocabulary in which every row's best tokens lie. Distributions are those of the
// whole vocabulary, and so is every draw, since the tokens keep their order; but it takes a fraction of the time.
class Speaker {
 public:
  Speaker(Backend& backend, Language& target, Language& draft, const Method& method, std::vector<Token> words)
      : target_(target),
        draft_(draft),
        words_(std::move(words)),
        vocab_(int(words_.size())),
        policy_(make_tree_policy(tree_of(method))),
        tree_(policy_->capacity()),
        distributions_(policy_->capacity(), vocab_),
        acceptance_(make_acceptance({method.kind}, backend, {vocab_, policy_->capacity(), int(method.widths.size())})),
        guesser_(backend, {method.draws.value_or(acceptance_->draws())}, policy_->width(), policy_->rows(), vocab_,
                 vocab_),
        depth_(int(method.widths.size())) {
    if (method.plain_residual) acceptance_ = std::make_unique<PlainResidual>(backend);
  }

  // Rounds until there are two tokens; false when rows are missing, which are then asked for.
  bool speak(int index, Sample& sample) {
    const Sampling sampling = sampling_of(index);
    Path said;
    if (!round(sampling, depth_, said)) return false;
    sample.accepted = int(said.size()) - 1;
    if (said.size() < 2 && !round(sampling, 1, said)) return false;
    sample.first = said[0], sample.second = said[1], sample.done = true;
    return true;
  }

 private:
  bool round(const Sampling& sampling, int depth, Path& said) {
    std::vector<Token> text = kPrompt;
    text.insert(text.end(), said.begin(), said.end());
    tree_.reset(text.back());
    DraftTask task;
    task.text = text, task.sampling = &sampling, task.tree = &tree_, task.distributions = &distributions_;
    task.limits.nodes = policy_->capacity() - 1, task.limits.depth = depth;
    if (!grow(task, said)) return false;
    std::vector<NodeId> nodes(static_cast<size_t>(tree_.size()));
    std::iota(nodes.begin(), nodes.end(), 0);
    if (!gather(target_, said, nodes)) return false;
    AcceptArgs args;
    args.tree = &tree_, args.logits = rows_.data(), args.vocab = vocab_, args.position = text.size();
    args.sampling = &sampling, args.draft_probs = &distributions_;
    acceptance_->accept(args, result_);
    for (const NodeId node : std::span(result_.path).subspan(1)) said.push_back(word(tree_.token(node)));
    said.push_back(word(result_.next));
    return true;
  }

  // As TreeDrafter does it.
  bool grow(const DraftTask& task, const Path& said) {
    policy_->start(task.limits);
    std::vector<NodeId> now, next = {0};
    std::vector<NodeCandidates> distributions;
    while (!next.empty()) {
      now.swap(next);
      if (!gather(draft_, said, now)) return false;
      guesser_.prepare(rows_.data(), int(now.size()));
      distributions.clear();
      for (size_t i = 0; i < now.size(); ++i) {
        const uint64_t position = task.text.size() + size_t(tree_.depth(now[i]));
        distributions.push_back(
            {now[i], guesser_.guess(task, now[i], position, rows_.data() + i * size_t(vocab_), int(i))});
      }
      next.clear();
      policy_->grow(tree_, distributions, next);
    }
    policy_->finish(tree_);
    return true;
  }

  // Rows of the nodes, in that order; tokens that are not among a row's best cannot be.
  bool gather(Language& language, const Path& said, std::span<const NodeId> nodes) {
    bool all = true;
    rows_.assign(nodes.size() * size_t(vocab_), -std::numeric_limits<float>::infinity());
    for (size_t i = 0; i < nodes.size(); ++i) {
      Path path;
      for (NodeId n = nodes[i]; n != 0; n = tree_.parent(n)) path.insert(path.begin(), word(tree_.token(n)));
      path.insert(path.begin(), said.begin(), said.end());
      const Row* row = language.find(path);
      all = all && row;
      if (!row) continue;
      for (const auto& [token, logit] : *row) {
        const auto place = std::lower_bound(words_.begin(), words_.end(), token) - words_.begin();
        rows_[i * size_t(vocab_) + size_t(place)] = logit;
      }
    }
    return all;
  }

  Token word(Token place) const { return words_[size_t(place)]; }

  Language &target_, &draft_;
  const std::vector<Token> words_;  // ascending; a token of the tree is a place in it
  const int vocab_;
  std::unique_ptr<TreePolicy> policy_;
  TokenTree tree_;
  DraftProbs distributions_;
  std::unique_ptr<Acceptance> acceptance_;
  CandidateFinder guesser_;
  const int depth_;
  std::vector<float> rows_;  // [nodes, vocab]
  AcceptResult result_;
};

std::string model_path() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path base =
      cache && *cache ? std::filesystem::path(cache) : std::filesystem::path(home ? home : "") / ".cache";
  return base / "specextend" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf";
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Report {
  Fit first, second, both;  // tokens; the second: after the likeliest first one
  double accepted = 0;      // drafted tokens per round
};

// The default model as target, and with ten halves of layers left out as its own draft: the distributions overlap by
// two thirds.
class DefaultModel : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = model_path();
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "the default model is not at " << path;
    backend_ = make_cpu_backend({});
    ModelOptions options;
    options.max_rows = options.max_outputs = kBatch, options.context = 2 * kBatch;
    model_ = Model::load(ModelFile::open(path), *backend_, options);
    ASSERT_EQ(model_->config().layers, 30);
    skip_attention_.assign(30, 0), skip_ffn_.assign(30, 0);
    for (const size_t layer : {4, 6, 7, 8, 17, 20, 23, 26, 29}) skip_attention_[layer] = 1;
    skip_ffn_[17] = 1;
    target_ = std::make_unique<Language>(*backend_, *model_, LayerPlan{});
    draft_ = std::make_unique<Language>(*backend_, *model_, LayerPlan{skip_attention_.data(), skip_ffn_.data()});
  }

  std::vector<Token> words(bool all) const {
    std::vector<Token> every(static_cast<size_t>(model_->config().vocab));
    std::iota(every.begin(), every.end(), 0);
    if (all) return every;
    std::set<Token> known = target_->tokens();
    known.insert(draft_->tokens().begin(), draft_->tokens().end());
    return {known.begin(), known.end()};
  }

  // A sample that lacks rows is begun again when they are there: what it says depends on its seed only.
  std::vector<Sample> play(const Method& method, int count, bool all_words) {
    std::vector<Sample> samples(static_cast<size_t>(count));
    for (bool complete = false; !complete;) {
      target_->run();
      draft_->run();
      Speaker speaker(*backend_, *target_, *draft_, method, words(all_words));
      complete = true;
      for (int i = 0; i < count; ++i)
        if (!samples[size_t(i)].done && !speaker.speak(i, samples[size_t(i)])) complete = false;
    }
    return samples;
  }

  Report accept(const Method& method, std::span<const Sample> samples) {
    Report r;
    Counts first, second, both;
    const Distribution distribution = target_->distribution({});
    const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
    const Path likeliest = std::max_element(distribution.begin(), distribution.end(), less)->first;
    for (const Sample& s : samples) {
      ++first[{s.first}];
      ++both[{s.first, s.second}];
      if (s.first == likeliest[0]) ++second[{s.second}];
      r.accepted += double(s.accepted) / double(samples.size());
    }
    show(method, "first", r.first = fit(first, distribution));
    show(method, "second", r.second = fit(second, target_->distribution(likeliest)));
    show(method, "both", r.both = fit(both, target_->pair_distribution()));
    fmt::print("{:22} {:.3f} drafted tokens accepted per round\n", method.name, r.accepted);
    RecordProperty(fmt::format("{}_accepted", method.name), fmt::format("{:.3f}", r.accepted));
    return r;
  }

  void show(const Method& method, const char* which, const Fit& f) {
    fmt::print(
        "{:22} {:6} p = {:.3g} (chi-square {:.2f}, {} degrees of freedom, {} samples), "
        "total variation {:.4f} where chance explains {:.4f}\n",
        method.name, which, f.p, f.statistic, f.freedom, f.samples, f.distance, f.explained);
    RecordProperty(fmt::format("{}_{}_p", method.name, which), fmt::format("{:.3g}", f.p));
  }

  void show_cost(double start) const {
    fmt::print("{} texts of the target in {} passes, {} of the draft in {}; {:.1f} s\n", target_->texts(),
               target_->passes(), draft_->texts(), draft_->passes(), seconds() - start);
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::vector<uint8_t> skip_attention_, skip_ffn_;
  std::unique_ptr<Language> target_, draft_;
};

TEST_F(DefaultModel, RulesKeepTheDistribution) {
  const double start = seconds();
  for (const Method& method :
       {Method{"chain", AcceptKind::kChain, {1, 1, 1}}, Method{"block", AcceptKind::kBlockwise, {1, 1, 1}},
        Method{"specinfer", AcceptKind::kSpecInfer, {4, 2}},
        Method{"no_replacement", AcceptKind::kNoReplacement, {4, 2}},
        Method{"traversal", AcceptKind::kTraversal, {4, 2}}, Method{"match", AcceptKind::kMatch, {4, 2}}}) {
    SCOPED_TRACE(method.name);
    const bool match = method.kind == AcceptKind::kMatch;  // its random are keyed by token
    const std::vector<Sample> samples = play(method, match ? kSamples / 5 : kSamples, match);
    const Report r = accept(method, samples);
    for (const Fit& f : {r.first, r.second, r.both}) {
      EXPECT_GE(f.freedom, 2);
      EXPECT_GT(f.p, 1e-4);
      EXPECT_LT(f.distance, f.explained);
    }
    EXPECT_GT(r.accepted, 0.5);
    if (match) continue;
    const std::vector<Sample> whole = play(method, 50, true);
    EXPECT_TRUE(std::equal(whole.begin(), whole.end(), samples.begin())) << "a part of the vocabulary draws otherwise";
  }
  show_cost(start);
}

TEST_F(DefaultModel, WrongRulesAreFoundOut) {
  const double start = seconds();
  for (const Method& method : {Method{"plain_residual", AcceptKind::kChain, {1}, {}, true},
                               Method{"specinfer_on_distinct", AcceptKind::kSpecInfer, {8}, DrawMode::kDistinct}}) {
    SCOPED_TRACE(method.name);
    EXPECT_LT(accept(method, play(method, kSamples, false)).first.p, 1e-6);
  }
  show_cost(start);
}

}  // namespace
}  // namespace sx
