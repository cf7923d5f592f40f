// The rules that keep the target's law, on the real weights of the default model: 10,000 seeded rounds each, drafted and judged
// by the engine's own parts, and a chi-square test of the tokens that come out against the law the target has there. Logits
// are a pure function of the text, so every text is run once and remembered. Wrong rules must be found out by the same test.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "backend/registry.h"
#include "base/rng.h"
#include "model/llama.h"
#include "spec/acceptance.h"
#include "spec/draft_laws.h"
#include "spec/tree_policy.h"

namespace sx {
namespace {

// --- Statistics.

// Q(a, x): the upper part of the gamma function, regularised, by its power series or by Lentz's continued fraction.
double upper_gamma(double a, double x) {
  if (x <= 0) return 1;
  const double scale = std::exp(a * std::log(x) - x - std::lgamma(a));
  if (x < a + 1) {
    double term = 1 / a, sum = term;
    for (double n = a + 1; term > sum * 1e-16; ++n) sum += term *= x / n;
    return 1 - scale * sum;
  }
  double b = x + 1 - a, c = 1e300, d = 1 / b, fraction = d, change = 0;
  for (int i = 1; i < 10000 && std::fabs(change - 1) > 1e-15; ++i) {
    const double an = -i * (i - a);
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    fraction *= change = c * d;
  }
  return scale * fraction;
}

double chi_square_p(double statistic, int freedom) { return upper_gamma(freedom / 2.0, statistic / 2); }

using Law = std::map<Token, double>;   // tokens of positive probability
using Counts = std::map<Token, int>;

struct Fit {
  int samples = 0, freedom = 0;
  double statistic = 0, p = 0;
  double distance = 0;    // total variation between counts and law
  double explained = 0;   // the same count of samples of the law itself stays below it, but for one time in 10,000
};

// Counts against a law; tokens that are expected less than five times share a bin.
Fit fit(const Counts& counts, const Law& law) {
  Fit f;
  for (const auto& [token, count] : counts) f.samples += count;
  double rare = 0, rare_expected = 0, scatter = 0;
  int bins = 0;
  const auto add_bin = [&](double observed, double expected) {
    f.statistic += (observed - expected) * (observed - expected) / expected;
    ++bins;
  };
  for (const auto& [token, probability] : law) {
    const auto found = counts.find(token);
    const double observed = found == counts.end() ? 0 : found->second, expected = probability * f.samples;
    f.distance += std::fabs(observed - expected) / f.samples / 2;
    scatter += std::sqrt(probability * (1 - probability) / f.samples) / 2;  // its mean is at most that
    if (expected < 5) rare += observed, rare_expected += expected;
    else add_bin(observed, expected);
  }
  if (rare_expected > 0) add_bin(rare, rare_expected);
  for (const auto& [token, count] : counts)
    if (!law.contains(token)) f.statistic = std::numeric_limits<double>::infinity();  // what cannot be has been
  f.freedom = bins - 1;
  f.p = std::isinf(f.statistic) ? 0 : chi_square_p(f.statistic, f.freedom);
  f.explained = scatter + std::sqrt(std::log(1e4) / (2.0 * f.samples));  // McDiarmid's inequality
  return f;
}

// --- Texts and their logits.

constexpr int kSamples = 10000;
constexpr int kBatch = 256;     // rows of one step
constexpr int kKept = 48;       // logits remembered of a row: more than top-k leaves, and all that a guess looks at

// "My favourite thing to do on a rainy day is to"
const std::vector<Token> kPrompt = getenv("P") ? std::vector<Token>{504,3947,281,260,8718,416,1363,3112,28,588,294,40062,868,1811,2635} : std::vector<Token>{5965, 20334, 2775, 288, 536, 335, 253, 24536, 1194, 314, 288};

Sampling sampling_of(int sample) {
  Sampling s;
  s.temperature = getenv("T") ? float(atof(getenv("T"))) : 0.9f, s.top_k = getenv("K") ? atoi(getenv("K")) : 20, s.top_p = 0.95f;
  s.seed = mix64(uint64_t(sample) + 0x5eed);
  return s;
}

using Row = std::vector<std::pair<Token, float>>;  // the best tokens of a row and their logits
using Path = std::vector<Token>;                   // what follows the prompt

// The model run in one way: whole, or with layers left out. Rows are remembered by path.
class Language {
 public:
  Language(Backend& backend, Model& model, const LayerPlan& plan)
      : backend_(backend), model_(model), plan_(plan), history_(int(kPrompt.size()) - 1),
        kv_(backend.make_kv(model.kv_geometry(1, history_ + kBatch, backend.default_kv_type()))) {
    std::vector<int32_t> positions(static_cast<size_t>(history_));
    std::iota(positions.begin(), positions.end(), 0);
    const SeqRows all{0, history_, 0, 0, nullptr, 0};
    model_.forward({std::span(kPrompt).first(positions.size()), positions, std::span(&all, 1), {}}, *kv_, plan_);
    find({});
    run();
  }

  // The row after a path; null if it was never run: then the next run() does.
  const Row* find(const Path& path) {
    const auto found = rows_.find(path);
    if (found != rows_.end()) return &found->second;
    missing_.insert(path);
    return nullptr;
  }
  const Law& law(const Path& path) const { return laws_.at(path); }
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
    const SeqRows strip{0, tree.size(), 0, history_, tree.ancestors(), tree.words()};
    const float* logits = model_.forward({tree.tokens(), positions, std::span(&strip, 1), outputs}, *kv_, plan_).logits;
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
    std::vector<double> law(static_cast<size_t>(vocab));
    backend_.law({law.data(), {logits, 0, &sampling, {}, {}}, vocab});
    for (int t = 0; t < vocab; ++t)
      if (law[size_t(t)] > 0) laws_[path][t] = law[size_t(t)];
  }

  Backend& backend_;
  Model& model_;
  const LayerPlan plan_;
  const int history_;                // cells of the prompt but for its last token, which is pending
  std::unique_ptr<KvStore> kv_;
  std::map<Path, Row> rows_;
  std::map<Path, Law> laws_;         // of the first two tokens after the prompt, made from whole rows
  std::set<Path> missing_;
  std::set<Token> tokens_;
  int passes_ = 0;
};

// --- Rounds.

// What TriForce does: a rejected token is followed by a draw from the target's law instead of what is left of it.
class PlainResidual final : public Acceptance {
 public:
  explicit PlainResidual(Backend& backend) : backend_(backend) {}
  DrawMode draws() const override { return DrawMode::kIid; }

  void judge(const JudgeArgs& a, Verdict& verdict) override {
    std::vector<double> p(static_cast<size_t>(a.vocab));
    uint64_t counter = 0;
    const auto uniform = [&] { return uniform_from(hash_key(~a.sampling->seed, a.position, counter++)); };
    verdict.path.clear();
    for (NodeId node = 0; node != kNoNode;) {
      verdict.path.push_back(node);
      backend_.law({p.data(), {a.logits + size_t(node) * size_t(a.vocab), a.position, a.sampling, {}, {}}, a.vocab});
      const NodeId child = a.tree->first_child(node);
      const auto x = child == kNoNode ? 0 : size_t(a.tree->token(child));
      node = child != kNoNode && uniform() * double(a.laws->row(node)[x]) < p[x] ? child : kNoNode;
    }
    double left = uniform();
    for (verdict.next = 0; left > p[size_t(verdict.next)] && verdict.next + 1 < a.vocab;) left -= p[size_t(verdict.next++)];
  }

 private:
  Backend& backend_;
};

struct Method {
  const char* name;
  AcceptKind kind;
  std::vector<int> widths;          // of the tree, by level
  std::optional<DrawMode> draws;    // instead of the rule's own
  bool plain_residual = false;      // instead of the rule
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
  int accepted = 0;                 // drafted tokens, in the first round
  bool done = false;
};

// Drafts and judges over a part of the vocabulary in which every row's best tokens lie. Laws are those of the whole
// vocabulary, and so is every draw, since the tokens keep their order; but it takes a fraction of the time.
class Speaker {
 public:
  Speaker(Backend& backend, Language& target, Language& draft, const Method& method, std::vector<Token> words)
      : target_(target), draft_(draft), words_(std::move(words)), vocab_(int(words_.size())),
        policy_(make_tree_policy(tree_of(method))), tree_(policy_->capacity()), laws_(policy_->capacity(), vocab_),
        acceptance_(make_acceptance({method.kind}, backend, {vocab_, policy_->capacity(), int(method.widths.size())})),
        guesser_(backend, {method.draws.value_or(acceptance_->draws()), true}, policy_->width(), policy_->rows(), vocab_, vocab_),
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
    task.text = text, task.sampling = &sampling, task.tree = &tree_, task.laws = &laws_;
    task.limits.nodes = policy_->capacity() - 1, task.limits.depth = depth;
    if (!grow(task, said)) return false;
    std::vector<NodeId> nodes(static_cast<size_t>(tree_.size()));
    std::iota(nodes.begin(), nodes.end(), 0);
    if (!gather(target_, said, nodes)) return false;
    JudgeArgs args;
    args.tree = &tree_, args.logits = rows_.data(), args.vocab = vocab_, args.position = text.size();
    args.sampling = &sampling, args.laws = &laws_;
    acceptance_->judge(args, verdict_);
    for (const NodeId node : std::span(verdict_.path).subspan(1)) said.push_back(word(tree_.token(node)));
    said.push_back(word(verdict_.next));
    return true;
  }

  // As ModelDrafter does it.
  bool grow(const DraftTask& task, const Path& said) {
    policy_->start(task.limits);
    std::vector<NodeId> now, next = {0};
    std::vector<NodeLaw> laws;
    while (!next.empty()) {
      now.swap(next);
      if (!gather(draft_, said, now)) return false;
      guesser_.prepare(rows_.data(), int(now.size()));
      laws.clear();
      for (size_t i = 0; i < now.size(); ++i) {
        const uint64_t position = task.text.size() + size_t(tree_.depth(now[i]));
        laws.push_back({now[i], guesser_.guess(task, now[i], position, rows_.data() + i * size_t(vocab_), int(i))});
      }
      next.clear();
      policy_->grow(tree_, laws, next);
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
  DraftLaws laws_;
  std::unique_ptr<Acceptance> acceptance_;
  Guesser guesser_;
  const int depth_;
  std::vector<float> rows_;         // [nodes, vocab]
  Verdict verdict_;
};

std::string model_path() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path base =
      cache && *cache ? std::filesystem::path(cache) : std::filesystem::path(home ? home : "") / ".cache";
  return base / "specextend" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf";
}

struct Report {
  Fit first, second;                // the second token after the likeliest first one
  double accepted = 0;              // drafted tokens per round
};

// The default model as target, and with layers left out as draft of itself.
class DefaultModel : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = model_path();
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "the default model is not at " << path;
    backend_ = make_cpu_backend({});
    ModelOptions options;
    options.max_rows = options.max_outputs = kBatch, options.context = 2 * kBatch;
    model_ = Model::load(ModelFile::open(path), *backend_, options);
    const auto layers = size_t(model_->config().layers);
    skip_attention_.assign(layers, 0), skip_ffn_.assign(layers, 0);
    for (const int layer : {4, 6, 7, 8, 17, 20, 23, 26, 29}) skip_attention_[size_t(layer)] = 1;
    skip_ffn_[17] = 1;
    target_ = std::make_unique<Language>(*backend_, *model_, LayerPlan{});
    draft_ = std::make_unique<Language>(*backend_, *model_, LayerPlan{skip_attention_.data(), skip_ffn_.data()});
  }

  std::vector<Token> all_words() const {
    std::vector<Token> words(static_cast<size_t>(model_->config().vocab));
    std::iota(words.begin(), words.end(), 0);
    return words;
  }
  std::vector<Token> known_words() const {
    std::set<Token> words = target_->tokens();
    words.insert(draft_->tokens().begin(), draft_->tokens().end());
    return {words.begin(), words.end()};
  }

  // Every sample that lacks a row is begun again when the row is there: what it says depends on its seed only.
  std::vector<Sample> play(const Method& method, bool whole_vocabulary, int count) {
    std::vector<Sample> samples(static_cast<size_t>(count));
    for (bool complete = false; !complete;) {
      target_->run();
      draft_->run();
      Speaker speaker(*backend_, *target_, *draft_, method, whole_vocabulary ? all_words() : known_words());
      complete = true;
      for (int i = 0; i < count; ++i)
        if (!samples[size_t(i)].done && !speaker.speak(i, samples[size_t(i)])) complete = false;
    }
    return samples;
  }

  Report report(const Method& method, std::span<const Sample> samples) {
    Report r;
    Counts first, second;
    const Law& law = target_->law({});
    const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
    const Token likeliest = std::max_element(law.begin(), law.end(), less)->first;
    for (const Sample& s : samples) {
      ++first[s.first];
      if (s.first == likeliest) ++second[s.second];
      r.accepted += double(s.accepted) / double(samples.size());
    }
    r.first = fit(first, law);
    r.second = fit(second, target_->law({likeliest}));
    std::printf("%-34s accepted %.3f  first token: chi2(%2d) %8.2f p %-9.3g TV %.4f (< %.4f)  second: n %d chi2(%2d) %8.2f p %.3g\n",
                method.name, r.accepted, r.first.freedom, r.first.statistic, r.first.p, r.first.distance, r.first.explained,
                r.second.samples, r.second.freedom, r.second.statistic, r.second.p);
    const std::string name = method.name;
    RecordProperty(name + " first p", std::to_string(r.first.p));
    RecordProperty(name + " second p", std::to_string(r.second.p));
    RecordProperty(name + " accepted", std::to_string(r.accepted));
    return r;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::vector<uint8_t> skip_attention_, skip_ffn_;
  std::unique_ptr<Language> target_, draft_;
};

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

TEST_F(DefaultModel, RulesKeepTheLaw) {
  double overlap = 0;
  for (auto [t, p] : target_->law({})) if (draft_->law({}).contains(t)) overlap += std::min(p, draft_->law({}).at(t));
  printf("overlap %.3f support %zu %zu\n", overlap, target_->law({}).size(), draft_->law({}).size());
  for (auto [t, p] : target_->law({})) printf("%d:%.3f ", t, p);
  printf("\n");
  for (const Method& m : {Method{"chain", AcceptKind::kChain, {1, 1, 1}, {}}, Method{"block", AcceptKind::kBlockwise, {1, 1, 1}, {}},
                          Method{"specinfer", AcceptKind::kSpecInfer, {2, 2}, {}}, Method{"no-replacement", AcceptKind::kNoReplacement, {3, 1}, {}},
                          Method{"traversal", AcceptKind::kTraversal, {2, 2}, {}},
                          Method{"specinfer distinct", AcceptKind::kSpecInfer, {3, 1}, DrawMode::kDistinct},
                          Method{"plain residual", AcceptKind::kChain, {1, 1, 1}, {}, true},
                          Method{"match", AcceptKind::kMatch, {2, 2}, {}}}) {
    const double start = seconds();
    const auto samples = play(m, m.kind == AcceptKind::kMatch, kSamples);
    const double end = seconds();
    report(m, samples);
    printf("  %.1f s, %zu + %zu texts, %d + %d passes, %zu words\n", end - start, target_->texts(), draft_->texts(), target_->passes(), draft_->passes(), known_words().size());
    const double b = seconds();
    const auto few = play(m, true, 100);
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(few[i].first == samples[i].first && few[i].second == samples[i].second && few[i].accepted == samples[i].accepted);
    printf("  100 whole %.2f s\n", seconds() - b);
  }
}

}  // namespace
}  // namespace sx
