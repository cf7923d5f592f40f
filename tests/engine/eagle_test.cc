// Drafting with EAGLE heads: the text never changes, and what is drafted is a function of the text, not of how it was
// cut into chunks, what the session held before, or which rounds were drafted. Rules on draws keep the distribution of
// the text.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/head_answers.h"
#include "model/heads/head_parts.h"
#include "speculative/chi_square.h"
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
    testing::random_head(testing::eagle1_config(config), {"fc.weight", "fc.bias"}, config, DType::kF32, 3)
        .write(eagle1);
    testing::random_head(testing::eagle3_config(config, 1, 160), {"lm_head.weight", "d2t"}, config, DType::kBF16, 4)
        .write(eagle3);
  }
};
const Files& files() {
  static const Files all;
  return all;
}

EngineOptions options(const std::string& head, const std::string& preset, int chunk, int sessions = 1) {
  return testing::small_options(files().target, preset, head, chunk, sessions);
}

TEST(Eagle, NeverChangesTheText) {
  const testing::PlainAnswers plain(files().target, {0.0f, 0.9f}, {1, 2, 33, 34, 100});
  for (const std::string& head : {files().eagle1, files().eagle3})
    for (const char* preset : {"sd", "eagle2-tree", "opt-tree", "specinfer", "fuse"})
      plain.expect_same_text(*Engine::open(options(head, preset, 33)), 40, fmt::format("{} {}", head, preset));
}

TEST(Eagle, DraftsDependOnTheTextAlone) {
  for (const std::string& head : {files().eagle1, files().eagle3})
    testing::expect_drafts_of_text_alone([&](int chunk) { return Engine::open(options(head, "eagle2-tree", chunk)); },
                                         {64, 7, 65, 89}, 200, head);
}

TEST(Eagle, BatchesAreLikeSingleRequests) {
  testing::expect_batches_like_single(*Engine::open(options(files().eagle3, "eagle2-tree", 64, 3)), 0, "eagle3");
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

std::vector<double> distribution_of(std::span<const float> logits) {
  std::vector<double> distribution;
  double sum = 0;
  for (const float logit : logits) sum += distribution.emplace_back(std::exp(double(logit) / double(kTemperature)));
  for (double& p : distribution) p /= sum;
  return distribution;
}

// What plain sampling says after the prompt: the first token, and the classes of the first two.
struct PlainDistributions {
  testing::Distribution first, classes;
  PlainDistributions(Engine& plain, const std::vector<Token>& prompt) {
    auto session = plain.start();
    const auto distribution = distribution_of(session->evaluate(prompt, 1));
    for (Token t = 0; t < kVocab; ++t) {
      first[{t}] = distribution[size_t(t)];
      session->truncate(int(prompt.size()));
      const auto next = distribution_of(session->evaluate({&t, 1}, 1));
      for (Token u = 0; u < kVocab; ++u)
        classes[{class_of(t), class_of(u)}] += distribution[size_t(t)] * next[size_t(u)];
    }
  }
};

TEST(Eagle, RulesOnDrawsKeepTheDistributionWithHalfAVocabulary) {
  constexpr int kSamples = 6000;
  const SmallFiles small;
  const std::vector<Token> prompt = {3, 141, 59, 26, 53, 58, 97, 93, 238, 46, 26, 43};
  EngineOptions o;
  o.model = small.target, o.context = 64, o.threads = 1;
  const PlainDistributions distributions(*Engine::open(o), prompt);
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
    const auto by_token = testing::fit(first, distributions.first),
               by_class = testing::fit(classes, distributions.classes);
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
