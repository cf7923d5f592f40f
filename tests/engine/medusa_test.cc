// Drafting with Medusa heads: the text never changes, what is drafted are the heads' candidates in the shape that was
// asked for, and it is a function of the text, not of chunks, of what the session held before, or of which rounds were
// drafted.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "backend/registry.h"
#include "engine/head_allocations.h"
#include "engine/head_answers.h"
#include "model/heads/head_parts.h"
#include "model/heads/medusa.h"
#include "speculative/chi_square.h"
#include "speculative/draft/medusa.h"
#include "speculative/draft/medusa_paths.h"
#include "specextend/specextend.h"
#include "support/model_writer.h"
#include "support/random_text.h"

namespace sx {
namespace {

using testing::Answer;
using testing::answer;
using testing::expect_same;
using testing::HeadParts;
using testing::TempFolder;
using testing::TinySpec;
using Paths = std::vector<std::vector<int>>;

const Paths kChoices = {{1, 0}, {0}, {1}, {0, 0}, {2}, {0, 0, 1}, {0, 0, 0}, {1, 2}, {4}};

TinySpec target_spec() {
  TinySpec spec;
  spec.layers = 3, spec.gain = 2, spec.weights = DType::kQ8_0;
  return spec;
}

// Three heads of two blocks.
HeadParts random_medusa(const ModelConfig& config, unsigned seed) {
  const std::vector<std::string> names = {"blocks.2.layers.1.weight", "blocks.0.layers.0.bias", "lm_heads.2.weight"};
  return testing::random_head({{"medusa_num_heads", 3}}, names, config, DType::kF32, seed);
}

// Only every other token can be drafted.
void reduce_vocabulary(HeadParts& parts, int64_t words) {
  for (int h = 0; h < 3; ++h) {
    testing::HeadPart& out = parts.get(fmt::format("lm_heads.{}.weight", h));
    out.data.resize(size_t(words * out.shape[1]) * sizeof(float));
    out.shape[0] = words;
  }
  testing::Bytes map(size_t(words) * sizeof(int64_t));
  for (int64_t i = 0; i < words; ++i) {
    const int64_t token = 2 * i + 1;
    std::memcpy(&map[size_t(i) * sizeof(token)], &token, sizeof(token));
  }
  parts.tensors.push_back({"token_map", "I64", {words}, std::move(map)});
}

// `plain` has no tree of its own, `chosen` has, `reduced` has a small vocabulary as well.
struct Files {
  TempFolder folder;
  std::string target = folder.file("target.gguf"), plain = folder.file("plain"), chosen = folder.file("chosen"),
              reduced = folder.file("reduced"), eagle = folder.file("eagle");
  ModelConfig config = testing::tiny_config(target_spec());
  Files() {
    testing::write_tiny_gguf(target, target_spec());
    HeadParts parts = random_medusa(config, 3);
    parts.write(plain);
    parts.config["medusa_choices"] = kChoices;
    parts.write(chosen);
    reduce_vocabulary(parts, 150);
    parts.write(reduced);
    testing::random_head(testing::eagle1_config(config), {"fc.weight", "fc.bias"}, config, DType::kF32, 3).write(eagle);
  }
};
const Files& files() {
  static const Files all;
  return all;
}

using Settings = std::vector<std::pair<std::string, std::string>>;

EngineOptions options(const std::string& head, const std::string& preset, int chunk, const Settings& settings = {},
                      int sessions = 1) {
  EngineOptions o;
  o.model = files().target, o.context = 400, o.threads = 1, o.chunk = chunk, o.max_sessions = sessions;
  if (head.empty()) return o;
  o.spec.preset = preset, o.spec.draft_model = head;
  o.spec.settings.emplace_back("cost-model", "off");
  for (const auto& [name, value] : settings) o.spec.settings.emplace_back(name, value);
  return o;
}

TEST(Medusa, NeverChangesTheText) {
  auto plain = Engine::open(options("", "", 64));
  std::map<std::pair<float, int>, Answer> expected;
  for (float temperature : {0.0f, 0.9f, 1.1f})
    for (int length : {1, 2, 33, 34, 100})
      expected[{temperature, length}] =
          answer(*plain->start(), testing::random_text(length, unsigned(length)), temperature, 30);
  for (const std::string& head : {files().plain, files().chosen, files().reduced})
    for (const char* preset : {"medusa", "sd", "specinfer", "eagle3", "opt-tree", "specexec", "sequoia", "fuse"}) {
      auto engine = Engine::open(options(head, preset, 33));
      for (const auto& [key, answer_of] : expected) {
        const Answer found =
            answer(*engine->start(), testing::random_text(key.second, unsigned(key.second)), key.first, 30);
        const std::string what = fmt::format("{} {} temperature {} length {}", head, preset, key.first, key.second);
        expect_same(found, answer_of, what);
        EXPECT_GT(found.drafted(), 25u) << what;
      }
    }
}

// With a cost model everything is the same text as well.
TEST(Medusa, NeverChangesTheTextAtACost) {
  auto plain = Engine::open(options("", "", 64));
  for (const char* preset : {"medusa", "eagle3", "fuse"}) {
    auto engine = Engine::open(options(files().chosen, preset, 50, {{"cost-model", "on"}}));
    const auto prompt = testing::random_text(70, 9);
    for (float temperature : {0.0f, 0.9f})
      expect_same(answer(*engine->start(), prompt, temperature, 60), answer(*plain->start(), prompt, temperature, 60),
                  preset);
  }
}

// The heads by hand: the tree of every round must hold exactly their candidates, at the places the paths name.
class ByHand {
 public:
  explicit ByHand(const std::string& head)
      : backend_(make_cpu_backend({1, std::nullopt})), file_(HeadFile::open(head, files().config)) {
    ModelOptions options;
    options.taps = file_->taps();
    model_ = Model::load(ModelFile::open(files().target), *backend_, options);
    kv_ = backend_->make_kv(model_->kv_geometry(1, 512, backend_->default_kv_type()));
    heads_ = MedusaHeads::load(file_, *model_, *backend_, 1);
  }

  // For each head its tokens, best first, after `text`, whose last token is pending.
  std::vector<std::vector<Token>> candidates(std::span<const Token> text) {
    const size_t rows = text.size() - 1;
    std::vector<int32_t> positions(rows);
    for (size_t i = 0; i < rows; ++i) positions[i] = int32_t(i);
    const SeqRows seq{0, int(rows), 0, 0, nullptr, 0};
    const StepOutputs& out = model_->forward({text.first(rows), positions, std::span(&seq, 1), {}}, *kv_);
    const float* logits = heads_->forward(out.hidden[0] + (rows - 1) * size_t(files().config.width), 1);
    const int vocab = heads_->config().draft_vocab;
    std::vector<std::vector<Token>> best;
    for (int h = 0; h < heads_->heads(); ++h, logits += vocab) {
      std::vector<Token> order(static_cast<size_t>(vocab));
      for (int i = 0; i < vocab; ++i) order[size_t(i)] = i;
      std::stable_sort(order.begin(), order.end(), [&](Token a, Token b) { return logits[a] > logits[b]; });
      if (!heads_->token_map().empty())
        for (Token& t : order) t = heads_->token_map()[size_t(t)];
      best.push_back(std::move(order));
    }
    return best;
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::shared_ptr<HeadFile> file_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvStore> kv_;
  std::unique_ptr<MedusaHeads> heads_;
};

// Rounds of a greedy answer: the tokens of the trees as the paths, sorted by level, would have them.
void expect_candidates(const std::string& head, const Settings& settings, Paths paths) {
  std::stable_sort(paths.begin(), paths.end(),
                   [](const auto& a, const auto& b) { return a.size() != b.size() ? a.size() < b.size() : a < b; });
  ByHand hand(head);
  auto engine = Engine::open(options(head, "medusa", 40, settings));
  const auto prompt = testing::random_text(90, 7);
  const Answer found = answer(*engine->start(), prompt, 0, 40);
  auto text = prompt;
  size_t next = 0;                                                   // of the answer
  for (size_t round = 0; round + 4 < found.trees.size(); ++round) {  // near the limit trees are cut
    const auto& tree = found.trees[round];
    const auto best = hand.candidates(text);
    ASSERT_EQ(tree.size(), paths.size() + 1) << round;
    EXPECT_EQ(tree[0], text.back()) << round;
    for (size_t n = 0; n < paths.size(); ++n)
      EXPECT_EQ(tree[n + 1], best[paths[n].size() - 1][size_t(paths[n].back())])
          << "round " << round << ", node " << n + 1;
    // The round's text: what was accepted and the token after it.
    Paths::value_type path;
    for (;;) {
      const Token token = found.tokens[next++];
      text.push_back(token);
      bool accepted = false;
      for (size_t n = 0; n < paths.size() && !accepted; ++n) {
        const bool below = paths[n].size() == path.size() + 1 && std::equal(path.begin(), path.end(), paths[n].begin());
        if (below && tree[n + 1] == token) path = paths[n], accepted = true;
      }
      if (!accepted) break;
    }
  }
}

TEST(Medusa, DraftsAreTheHeadsCandidates) {
  expect_candidates(files().chosen, {}, kChoices);
  expect_candidates(files().reduced, {}, kChoices);
  expect_candidates(files().plain, {}, medusa_paths(3));
  expect_candidates(files().chosen, {{"paths", "0;1;0,3;0,3,2"}}, {{0}, {1}, {0, 3}, {0, 3, 2}});  // a setting wins
  expect_candidates(files().chosen, {{"depth", "1"}}, {{0}, {1}, {2}, {4}});
  expect_candidates(files().chosen, {{"nodes", "5"}}, {{0}, {1}, {2}, {4}, {0, 0}});
}

TEST(Medusa, ChainsAndLevelsEndAtTheLastHead) {
  ByHand hand(files().reduced);
  const auto prompt = testing::random_text(60, 3);
  const auto best = hand.candidates(prompt);
  auto chain = Engine::open(options(files().reduced, "sd", 64));
  EXPECT_EQ(answer(*chain->start(), prompt, 0, 30).trees[0],
            (std::vector<Token>{prompt.back(), best[0][0], best[1][0], best[2][0]}));
  for (const char* preset : {"eagle3", "opt-tree", "specexec", "sequoia", "specinfer"}) {
    auto engine = Engine::open(options(files().reduced, preset, 64));
    const auto tree = answer(*engine->start(), prompt, 0, 30).trees[0];
    std::set<Token> known;
    for (const auto& tokens : best) known.insert(tokens.begin(), tokens.begin() + 64);
    for (size_t n = 1; n < tree.size(); ++n) EXPECT_TRUE(known.contains(tree[n])) << preset << " node " << n;
    EXPECT_EQ(tree[1], best[0][0]) << preset;
  }
}

TEST(Medusa, DraftsDependOnTheTextAlone) {
  for (const std::string& head : {files().chosen, files().reduced})
    for (const char* preset : {"medusa", "eagle3"})
      testing::expect_drafts_of_text_alone([&](int chunk) { return Engine::open(options(head, preset, chunk)); },
                                           {64, 7, 65, 89, 90}, 100, preset);
}

TEST(Medusa, BatchesAreLikeSingleRequests) {
  for (const float temperature : {0.0f, 0.8f})
    for (const char* preset : {"medusa", "eagle3"})
      testing::expect_batches_like_single(*Engine::open(options(files().reduced, preset, 64, {}, 3)), temperature,
                                          preset);
}

const struct Drawing {
  const char *preset, *rule;
} kDrawing[] = {
    {"sd", "chain"}, {"sd", "block"}, {"medusa", "specinfer"}, {"medusa", "no-replacement"}, {"medusa", "traversal"}};

Settings settings_of(const Drawing& c) {
  Settings settings = {{"accept", c.rule}};
  if (c.preset == std::string("medusa")) settings.emplace_back("paths", "0;1;2;3;0,0;1,0;1,1;0,0,0;0,0,1");
  return settings;
}

// Rules that need draws: at temperature 0 the text is that of plain decoding; sampled, the same seed gives the same
// text.
TEST(Medusa, DrawsAreRepeatable) {
  auto plain = Engine::open(options("", "", 64));
  const auto prompt = testing::random_text(60, 11);
  const Answer expected = answer(*plain->start(), prompt, 0, 30);
  for (const std::string& head : {files().plain, files().chosen, files().reduced})
    for (const Drawing& c : kDrawing) {
      auto engine = Engine::open(options(head, c.preset, 64, settings_of(c), 2));
      expect_same(answer(*engine->start(), prompt, 0, 30), expected, c.rule);
      const Answer once = answer(*engine->start(), prompt, 0.9f, 60),
                   again = answer(*engine->start(), prompt, 0.9f, 60);
      EXPECT_EQ(once.tokens, again.tokens) << c.rule;
      EXPECT_TRUE(once.trees == again.trees) << c.rule;
      EXPECT_EQ(once.tokens.size(), 60u);
      EXPECT_GT(once.drafted(), 60u) << c.preset << " " << c.rule;
    }
}

// And the texts have the target's distribution. Biases leave four tokens to both sides, so that many drafts are
// accepted.
TEST(Medusa, DrawsKeepTheDistribution) {
  const std::vector<Token> words = {20, 21, 22, 23};
  const auto prompt = testing::random_text(30, 12);
  auto plain = Engine::open(options("", "", 64));
  testing::Distribution distribution = {{{}, 1.0}};
  for (int place = 0; place < 3; ++place) {
    testing::Distribution longer;
    for (const auto& [text, probability] : distribution) {
      auto session = plain->start();
      auto tokens = prompt;
      tokens.insert(tokens.end(), text.begin(), text.end());
      const auto logits = session->evaluate(tokens, 1);
      double sum = 0;
      for (Token t : words) sum += std::exp(double(logits[size_t(t)]));
      for (Token t : words) {
        auto next = text;
        next.push_back(t);
        longer[next] = probability * std::exp(double(logits[size_t(t)])) / sum;
      }
    }
    distribution = std::move(longer);
  }
  for (const Drawing& c : kDrawing) {
    auto engine = Engine::open(options(files().chosen, c.preset, 64, settings_of(c)));
    auto session = engine->start();
    testing::Counts counts;
    int rounds = 0;
    for (uint64_t seed = 0; seed < 1200; ++seed) {
      GenerateOptions o;
      o.max_tokens = 4, o.ignore_end = true, o.sampling.temperature = 1, o.sampling.seed = seed;
      o.sampling.top_k = 0, o.sampling.top_p = 1, o.sampling.min_p = 0;
      for (Token t : words) o.sampling.logit_bias.push_back({t, 60});
      o.on_round = [&](const RoundInfo&) { ++rounds; };
      auto tokens = session->generate(prompt, o).tokens;
      tokens.resize(3);
      ++counts[tokens];
    }
    const testing::Fit fit = testing::fit(counts, distribution);
    EXPECT_GT(fit.p, 1e-4) << c.preset << " " << c.rule << ": distance " << fit.distance;
    EXPECT_LT(fit.distance, fit.explained) << c.preset << " " << c.rule;
    EXPECT_LT(rounds, 1200 * 4 - 600) << c.preset << " " << c.rule << ": hardly any draft was accepted";
  }
}

TEST(Medusa, RoundsDoNotAllocate) {
  for (const char* preset : {"medusa", "sd", "eagle3", "opt-tree", "specexec", "fuse"})
    for (const float temperature : {0.0f, 0.8f})
      testing::expect_rounds_do_not_allocate(*Engine::open(options(files().reduced, preset, 64)), temperature, 50,
                                             preset);
}

// A tree that leaves a rank out would bias draws without replacement (texts were off by a fifth): refused, also when
// the head brings it.
TEST(Medusa, GapsAreRefusedWhereTheyWouldBias) {
  const auto error_of_rule = [](const std::string& head, const char* rule) -> std::string {
    try {
      Engine::open(options(head, "medusa", 64, {{"accept", rule}}));
    } catch (const Error& error) { return error.what(); }
    return "";
  };
  for (const char* rule : {"no-replacement", "traversal"}) {
    const std::string error = error_of_rule(files().chosen, rule);
    for (const std::string word : {files().chosen.c_str(), "medusa_choices", rule, "1,2 but not 1,1"})
      EXPECT_NE(error.find(word), std::string::npos) << error;
    EXPECT_EQ(error_of_rule(files().plain, rule), "");  // the built-in tree has none
  }
  EXPECT_EQ(error_of_rule(files().chosen, "specinfer"), "");
}

// Any draft with any tree, as with EAGLE's presets: preset medusa with an EAGLE head or a model keeps the built-in
// tree.
TEST(Medusa, ThePresetTakesOtherDraftsToo) {
  auto plain = Engine::open(options("", "", 64));
  const auto prompt = testing::random_text(50, 2);
  const Answer expected = answer(*plain->start(), prompt, 0, 30);
  for (const std::string& draft : {files().eagle, files().target}) {
    auto engine = Engine::open(options(draft, "medusa", 64));
    const Answer found = answer(*engine->start(), prompt, 0, 30);
    expect_same(found, expected, draft);
    EXPECT_EQ(found.trees[0].size(), 64u) << draft;
  }
}

std::string error_of(const nlohmann::ordered_json& choices) {
  const TempFolder folder;
  HeadParts parts = testing::read_parts(files().plain);
  parts.config["medusa_choices"] = choices;
  parts.write(folder.file("head"));
  try {
    Engine::open(options(folder.file("head"), "medusa", 64));
  } catch (const Error& error) { return error.what(); }
  return "";
}

TEST(Medusa, WrongChoicesAreRefusedByFileAndEntry) {
  using Json = nlohmann::ordered_json;
  const struct {
    Json choices;
    std::vector<std::string> words;
  } cases[] = {
      {7, {"not a list of 1 to 511"}},
      {Json::array(), {"not a list of 1 to 511"}},
      {Json::object(), {"not a list"}},
      {Json::parse("[1, 7, 6]"), {"entry 0 is 1", "1 to 3 ranks"}},
      {Json::parse("[[0], []]"), {"entry 1 is []", "1 to 3 ranks"}},
      {Json::parse("[[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]"), {"entry 3 is [0,0,0,0]", "1 to 3 ranks"}},
      {Json::parse("[[0], [-1]]"), {"entry 1 is [-1]", "0 to 510"}},
      {Json::parse("[[0], [511]]"), {"entry 1 is [511]", "0 to 510"}},
      {Json::parse("[[0], [18446744073709551615]]"), {"entry 1", "0 to 510"}},
      {Json::parse("[[0], [0, 1.5]]"), {"entry 1 is [0,1.5]", "whole numbers"}},
      {Json::parse("[[0], [\"1\"]]"), {"entry 1", "whole numbers"}},
      {Json::parse("[[0], [1], [0]]"), {"entry 2 is [0]", "entry 0 is already"}},
      {Json::parse("[[0], [1, 2]]"), {"entry 1 is [1, 2]", "[1]", "missing"}},
      {Json::parse("[[0, 0, 0], [0]]"), {"entry 0 is [0, 0, 0]", "[0, 0]", "missing"}},
  };
  for (const auto& c : cases) {
    const std::string error = error_of(c.choices);
    for (std::string word : c.words) EXPECT_NE(error.find(word), std::string::npos) << c.choices << ": " << error;
    EXPECT_NE(error.find("config.json: key 'medusa_choices'"), std::string::npos) << error;
  }
  Json many;
  for (int i = 0; i < 512; ++i) many.push_back({i});
  EXPECT_NE(error_of(many).find("1 to 511 lists"), std::string::npos);
  many.erase(511);
  EXPECT_EQ(error_of(many), "");  // the largest; ranks beyond the vocabulary stay empty
  EXPECT_EQ(error_of(nullptr), "");
  EXPECT_EQ(error_of(Json::parse("[[0, 1, 0], [0, 1], [0]]")), "");  // in any order
}

}  // namespace
}  // namespace sx
