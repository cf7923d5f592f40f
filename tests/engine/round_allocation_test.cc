// Nothing is allocated inside a round: a counting operator new watches whole generations of every preset, between the
// first and the last round.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "model/heads/head_parts.h"
#include "specextend/specextend.h"
#include "support/counting_new.h"
#include "support/model_writer.h"
#include "support/mtp_model.h"

namespace sx {
namespace {

void expect_no_allocation(const EngineOptions& options, const GenerateOptions& how, const std::string& what) {
  auto engine = Engine::open(options);
  std::vector<Token> prompt;
  for (int i = 0; i < 150; ++i) prompt.push_back(Token(3 + (i * i) % 40));
  auto session = engine->start();
  GenerateOptions o = how;
  long first = -1, last = -1;
  int64_t verified = 0;
  o.on_round = [&](const RoundInfo& r) {
    last = g_allocations.load();
    if (first < 0) first = last;
    verified += r.verified;
  };
  const auto result = session->generate(prompt, o);
  EXPECT_EQ(first, last) << what;
  EXPECT_GT(result.tokens.size(), 20u) << what;
  EXPECT_EQ(verified > 0, options.spec.preset != "off") << what;
}

TEST(RoundAllocation, NothingInAnyPreset) {
  const testing::TempFolder folder;
  testing::TinySpec spec;
  spec.weights = DType::kQ8_0, spec.gain = 2;
  testing::write_mtp_gguf(folder.file("target.gguf"), spec, 2);
  spec.weights = DType::kQ4_0;
  testing::write_tiny_gguf(folder.file("draft.gguf"), spec);
  GenerateOptions greedy, sampled;
  greedy.max_tokens = sampled.max_tokens = 120, greedy.ignore_end = sampled.ignore_end = true;
  sampled.sampling.temperature = 0.8f, sampled.sampling.repeat_penalty = 1.1f;
  for (const SpecPreset& preset : spec_presets()) {
    EngineOptions o;
    o.model = folder.file("target.gguf"), o.context = 400, o.threads = 2, o.spec.preset = preset.name;
    if (preset.needs_draft) o.spec.draft_model = folder.file("draft.gguf");
    o.spec.settings = {{"cost-model", "off"}};
    if (preset.name == "self-exit") o.spec.settings.push_back({"exit", "1"});
    expect_no_allocation(o, greedy, preset.name + " greedy");
    expect_no_allocation(o, sampled, preset.name + " sampled");
  }
  for (const char* rule : {"chain", "block", "specinfer", "no-replacement", "traversal"}) {
    EngineOptions o;
    o.model = folder.file("target.gguf"), o.context = 400, o.threads = 2, o.spec.preset = "sd";
    o.spec.draft_model = folder.file("draft.gguf");
    o.spec.settings = {{"accept", rule}};
    expect_no_allocation(o, sampled, rule);
  }
}

TEST(RoundAllocation, NothingWithEagleHeads) {
  const testing::TempFolder folder;
  testing::TinySpec spec;
  spec.layers = 6, spec.weights = DType::kQ8_0, spec.gain = 2;
  testing::write_tiny_gguf(folder.file("target.gguf"), spec);
  const ModelConfig target = testing::tiny_config(spec);
  testing::random_head(testing::eagle1_config(target), {"fc.weight", "fc.bias"}, target, DType::kQ8_0, 3)
      .write(folder.file("eagle1"));
  testing::random_head(testing::eagle3_config(target, 2, 160), {"lm_head.weight", "d2t"}, target, DType::kBF16, 4)
      .write(folder.file("eagle3"));
  GenerateOptions greedy, sampled;
  greedy.max_tokens = sampled.max_tokens = 50, greedy.ignore_end = sampled.ignore_end = true;
  sampled.sampling.temperature = 0.8f, sampled.sampling.repeat_penalty = 1.1f;
  EngineOptions o;
  o.model = folder.file("target.gguf"), o.context = 400, o.threads = 1;
  for (const auto& [head, preset] : {std::pair{"eagle1", "eagle1"},
                                     {"eagle1", "eagle2"},
                                     {"eagle1", "fuse"},
                                     {"eagle3", "eagle3"},
                                     {"eagle3", "opt-tree"},
                                     {"eagle3", "specexec"}}) {
    o.spec.preset = preset, o.spec.draft_model = folder.file(head), o.spec.settings = {{"cost-model", "off"}};
    expect_no_allocation(o, greedy, fmt::format("{} {} greedy", head, preset));
    expect_no_allocation(o, sampled, fmt::format("{} {} sampled", head, preset));
  }
  for (const char* rule : {"chain", "block", "specinfer", "no-replacement", "traversal"}) {
    o.spec.preset = "sd", o.spec.settings = {{"accept", rule}};
    expect_no_allocation(o, sampled, fmt::format("eagle3 {}", rule));
  }
}

// Draft caches that do choose, refresh and make room within the generation: texts are longer than budgets and trained
// lengths.
TEST(RoundAllocation, NothingWithAnyDraftCache) {
  const testing::TempFolder folder;
  testing::TinySpec spec;
  spec.layers = 3, spec.weights = DType::kQ8_0, spec.gain = 2;
  testing::write_tiny_gguf(folder.file("target.gguf"), spec);
  const ModelConfig target = testing::tiny_config(spec);
  spec.weights = DType::kQ4_0, spec.context = 128;
  testing::write_tiny_gguf(folder.file("model"), spec);
  auto head = testing::eagle3_config(target, 1, 160);
  head["eagle_aux_hidden_state_layer_ids"] = {1, 2, 3};
  head["max_position_embeddings"] = 128;
  testing::random_head(head, {"lm_head.weight", "d2t"}, target, DType::kBF16, 4).write(folder.file("head"));
  GenerateOptions how;
  how.max_tokens = 420, how.ignore_end = true;
  for (const char* draft : {"model", "head"})
    for (const char* cache : {"full", "window", "streaming", "retrieval", "once", "quest", "snap", "prune", "random"})
      for (const bool variant : {false, true}) {
        EngineOptions o;
        o.model = folder.file("target.gguf"), o.context = 640, o.threads = 1;
        o.spec.preset = "opt-tree", o.spec.draft_model = folder.file(draft);
        o.spec.settings = {{"cost-model", "off"},
                           {"nodes", "12"},
                           {"cache", cache},
                           {"budget", "40"},
                           {"chunk", "8"},
                           {"recent", "10"},
                           {"interval", variant ? "3" : "100000"},
                           {"positions", variant ? "compact" : "original"}};
        const std::string kind = cache;
        if (variant && kind == "retrieval") o.spec.settings.push_back({"layers", "all"});
        expect_no_allocation(o, how, fmt::format("{} {} {}", draft, cache, variant));
      }
}

}  // namespace
}  // namespace sx
