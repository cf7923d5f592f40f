// Drafting with EAGLE heads: the text never changes, and what is drafted is a function of the text, not of how it was cut into
// chunks, what the session held before, or which rounds were drafted. Rules on draws keep the law of the text.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model/heads/head_parts.h"
#include "spec/chi_square.h"
#include "specextend/specextend.h"
#include "support/model_writer.h"
#include "support/random_text.h"

namespace sx {
namespace {

using testing::TempFolder;
using testing::TinySpec;

struct Files {
  TempFolder folder;
  std::string target = folder.file("target.gguf"), eagle1 = folder.file("eagle1"), eagle3 = folder.file("eagle3");
  Files() {
    TinySpec spec;
    spec.layers = 6, spec.gain = 2, spec.weights = DType::kQ8_0;
    testing::write_tiny_gguf(target, spec);
    const ModelConfig config = testing::tiny_config(spec);
    testing::random_head(testing::eagle1_config(config), {"fc.weight", "fc.bias"}, config, DType::kF32, 3).write(eagle1);
    testing::random_head(testing::eagle3_config(config, 1, 160), {"lm_head.weight", "d2t"}, config, DType::kBF16, 4).write(eagle3);
  }
};
const Files& files() {
  static const Files all;
  return all;
}

EngineOptions options(const std::string& head, const std::string& preset, int chunk, int sessions = 1) {
  EngineOptions o;
  o.model = files().target, o.context = 400, o.threads = 1, o.chunk = chunk, o.max_sessions = sessions;
  if (!head.empty()) o.spec.preset = preset, o.spec.draft_model = head, o.spec.settings = {{"price", "off"}};
  return o;
}

struct Answer {
  std::vector<Token> tokens;
  std::vector<float> logits;
  std::vector<std::vector<Token>> trees;  // of each round
};

Answer answer(Session& session, const std::vector<Token>& prompt, float temperature, int tokens, bool speculate = true) {
  Answer out;
  GenerateOptions o;
  o.max_tokens = tokens, o.ignore_end = true, o.speculate = speculate, o.sampling.temperature = temperature, o.sampling.seed = 5;
  o.on_logits = [&](std::span<const float> row) { out.logits.insert(out.logits.end(), row.begin(), row.end()); };
  o.on_round = [&](const RoundInfo& r) { out.trees.emplace_back(r.tokens.begin(), r.tokens.end()); };
  out.tokens = session.generate(prompt, o).tokens;
  return out;
}

TEST(Eagle, NeverChangesTheText) {
  auto plain = Engine::open(options("", "", 64));
  for (const std::string& head : {files().eagle1, files().eagle3})
    for (const char* preset : {"sd", "eagle2-tree", "opt-tree", "specinfer", "fuse"}) {
      auto engine = Engine::open(options(head, preset, 33));
      for (float temperature : {0.0f, 0.9f})
        for (int length : {1, 2, 33, 34, 100}) {
          const auto prompt = testing::random_text(length, unsigned(length));
          const Answer expected = answer(*plain->start(), prompt, temperature, 40);
          const Answer found = answer(*engine->start(), prompt, temperature, 40);
          EXPECT_EQ(found.tokens, expected.tokens) << preset << " " << length;
          ASSERT_EQ(found.logits.size(), expected.logits.size());
          EXPECT_EQ(std::memcmp(found.logits.data(), expected.logits.data(), found.logits.size() * sizeof(float)), 0);
          size_t drafted = 0;
          for (const auto& tree : found.trees) drafted += tree.size() - 1;
          EXPECT_GT(drafted, 40u) << preset << " " << length;
        }
    }
}

TEST(Eagle, DraftsDependOnTheTextAlone) {
  for (const std::string& head : {files().eagle1, files().eagle3}) {
    const auto prompt = testing::random_text(90, 7), other = testing::random_text(120, 8);
    auto first = Engine::open(options(head, "eagle2-tree", 256));
    const Answer expected = answer(*first->start(), prompt, 0, 30);
    for (int chunk : {64, 7, 65, 89}) {
      auto engine = Engine::open(options(head, "eagle2-tree", chunk));
      auto session = engine->start();
      EXPECT_EQ(answer(*session, prompt, 0, 30).trees, expected.trees) << "chunk " << chunk;
      EXPECT_EQ(answer(*session, prompt, 0, 30).trees, expected.trees) << "again, from the cache";
      answer(*session, other, 0, 20);
      EXPECT_EQ(answer(*session, prompt, 0, 30).trees, expected.trees) << "after another prompt";
      auto longer = prompt;
      longer.insert(longer.end(), other.begin(), other.begin() + 30);
      answer(*session, longer, 0, 20);
      EXPECT_EQ(answer(*session, prompt, 0, 30).trees, expected.trees) << "after a longer one";
      session->evaluate(std::span(other).first(10), 1);
      session->truncate(40);
      EXPECT_EQ(answer(*session, prompt, 0, 30).trees, expected.trees) << "after truncation";
    }
    // Undrafted rounds are followed too: going on from them is like going on from the text.
    auto engine = Engine::open(options(head, "eagle2-tree", 64));
    auto session = engine->start(), fresh = std::unique_ptr<Session>();
    const Answer begun = answer(*session, prompt, 0, 100, false);
    auto text = prompt;
    text.insert(text.end(), begun.tokens.begin(), begun.tokens.end());
    const Answer went_on = answer(*session, text, 0, 20);
    session.reset();
    EXPECT_EQ(answer(*engine->start(), text, 0, 20).trees, went_on.trees);
  }
}

TEST(Eagle, BatchesAreLikeSingleRequests) {
  auto engine = Engine::open(options(files().eagle3, "eagle2-tree", 64, 3));
  std::vector<std::vector<Token>> prompts;
  std::vector<std::vector<std::vector<Token>>> alone;
  for (unsigned i = 0; i < 3; ++i) {
    prompts.push_back(testing::random_text(50 + 20 * int(i), 30 + i));
    alone.push_back(answer(*engine->start(), prompts[i], 0, 25).trees);
  }
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<GenerateOptions> with(3);
  std::vector<std::vector<std::vector<Token>>> trees(3);
  std::vector<Request> requests;
  for (size_t i = 0; i < 3; ++i) {
    sessions.push_back(engine->start());
    with[i].max_tokens = 25, with[i].ignore_end = true;
    with[i].on_round = [&trees, i](const RoundInfo& r) { trees[i].emplace_back(r.tokens.begin(), r.tokens.end()); };
    requests.push_back({sessions[i].get(), prompts[i], &with[i]});
  }
  engine->generate(requests);
  EXPECT_EQ(trees, alone);
}

// --- Rules on draws, with a head that knows half of the vocabulary.

constexpr int kVocab = testing::kTinySmallestVocab, kKnown = kVocab / 2;
constexpr float kTemperature = 0.8f;

Token known(int id) { return Token((id * 7 + 3) % kVocab); }  // 7 and kVocab have no factor in common
bool is_known(Token token) { return (token + kVocab - 3) * 223 % kVocab < kKnown; }  // 7 * 223 is 1, modulo kVocab
// Pairs of classes are few enough to count, and a class is known or not.
constexpr int kClasses = 8;
Token class_of(Token token) { return token % 4 * 2 + is_known(token); }

struct SmallFiles {
  TempFolder folder;
  std::string target = folder.file("target.gguf"), head = folder.file("head");
  SmallFiles() {
    TinySpec spec;
    spec.layers = 3, spec.vocab = kVocab;
    testing::write_tiny_gguf(target, spec);
    const ModelConfig config = testing::tiny_config(spec);
    auto json = testing::eagle3_config(config, 1, kKnown);
    json["eagle_aux_hidden_state_layer_ids"] = {1, 2, 3};
    auto parts = testing::random_head(json, {"lm_head.weight", "d2t"}, config, DType::kF32, 4);
    for (int64_t id = 0; id < kKnown; ++id) {
      const int64_t offset = known(int(id)) - id;
      std::memcpy(&parts.get("d2t").data[size_t(id) * sizeof(offset)], &offset, sizeof(offset));
    }
    parts.write(head);
  }
};

std::vector<double> law_of(std::span<const float> logits) {
  std::vector<double> law;
  double sum = 0;
  for (const float logit : logits) sum += law.emplace_back(std::exp(double(logit) / double(kTemperature)));
  for (double& p : law) p /= sum;
  return law;
}

// What plain sampling says after the prompt: the first token, and the classes of the first two.
struct PlainLaws {
  testing::Law first, classes;
  PlainLaws(Engine& plain, const std::vector<Token>& prompt) {
    auto session = plain.start();
    const auto law = law_of(session->evaluate(prompt, 1));
    for (Token t = 0; t < kVocab; ++t) {
      first[{t}] = law[size_t(t)];
      session->truncate(int(prompt.size()));
      const auto next = law_of(session->evaluate({&t, 1}, 1));
      for (Token u = 0; u < kVocab; ++u) classes[{class_of(t), class_of(u)}] += law[size_t(t)] * next[size_t(u)];
    }
  }
};

TEST(Eagle, RulesOnDrawsKeepTheLawWithHalfAVocabulary) {
  constexpr int kSamples = 6000;
  const SmallFiles small;
  const std::vector<Token> prompt = {3, 141, 59, 26, 53, 58, 97, 93, 238, 46, 26, 43};
  EngineOptions o;
  o.model = small.target, o.context = 64, o.threads = 1;
  const PlainLaws laws(*Engine::open(o), prompt);
  for (const std::string rule : {"chain", "block", "specinfer", "no-replacement", "traversal"}) {
    SCOPED_TRACE(rule);
    const bool chain = rule == "chain" || rule == "block";
    o.spec.preset = chain ? "sd" : "specinfer", o.spec.draft_model = small.head;
    o.spec.settings = {{"accept", rule}, {chain ? "nodes" : "widths", chain ? "3" : "3,2"}};
    auto engine = Engine::open(o);
    auto session = engine->start();
    testing::Counts first, classes;
    int64_t drafted = 0, unknown = 0, accepted = 0;
    for (int i = 0; i < kSamples; ++i) {
      GenerateOptions g;
      g.max_tokens = 4, g.ignore_end = true;
      g.sampling.temperature = kTemperature, g.sampling.top_k = 0, g.sampling.top_p = 1, g.sampling.min_p = 0;
      g.sampling.seed = uint64_t(i);
      g.on_round = [&](const RoundInfo& r) {
        for (const Token t : r.tokens.subspan(1)) ++drafted, unknown += !is_known(t);
      };
      const auto result = session->generate(prompt, g);
      ASSERT_EQ(result.tokens.size(), 4u);
      ++first[{result.tokens[0]}];
      ++classes[{class_of(result.tokens[0]), class_of(result.tokens[1])}];
      accepted += result.spec.accepted;
    }
    const auto by_token = testing::fit(first, laws.first), by_class = testing::fit(classes, laws.classes);
    fmt::print("{:15} p = {:.3g} ({} degrees of freedom), of pairs {:.3g} ({}); {:.2f} accepted\n", rule, by_token.p,
               by_token.freedom, by_class.p, by_class.freedom, double(accepted) / kSamples);
    EXPECT_GT(by_token.p, 1e-4);
    EXPECT_GT(by_class.p, 1e-4);
    EXPECT_GT(by_token.freedom, 100);
    EXPECT_EQ(by_class.freedom, kClasses * kClasses - 1);
    EXPECT_EQ(unknown, 0);
    EXPECT_GT(drafted, 2 * kSamples);
    EXPECT_GT(accepted, kSamples / 2);
  }
}

}  // namespace
}  // namespace sx
