#include "engine/engine_cases.h"

#include <fmt/format.h>

#include <cstring>
#include <random>

#include "engine/engine.h"
#include "model/heads/head_parts.h"
#include "support/model_writer.h"
#include "support/mtp_model.h"
#include "support/random_text.h"

namespace sx::testing {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

constexpr int kContext = 640, kTrained = 128, kPrompt = 300, kTokens = 26, kOutputs = 5;

// The draft is the target in fewer bits, so that it is often right; it and the heads were "trained" for fewer tokens
// than texts have.
struct Files {
  TempFolder folder;
  std::string target = folder.file("target.gguf"), draft = folder.file("draft.gguf"), eagle1 = folder.file("eagle1"),
              eagle3 = folder.file("eagle3"), medusa = folder.file("medusa"), longspec = folder.file("longspec"),
              assistant = folder.file("assistant"), dflash = folder.file("dflash"), dspark = folder.file("dspark"),
              parallel = folder.file("p-eagle");
  Files() {
    TinySpec spec;
    spec.layers = 3, spec.gain = 2, spec.weights = DType::kQ8_0, spec.head_dim = 32;
    write_mtp_gguf(target, spec, 1);
    const ModelConfig config = tiny_config(spec);
    spec.weights = DType::kQ4_0, spec.context = kTrained;
    write_tiny_gguf(draft, spec);
    auto json = eagle1_config(config);
    json["max_position_embeddings"] = kTrained, json["head_dim"] = 32;
    random_head(json, {"fc.weight", "fc.bias"}, config, DType::kF32, 3).write(eagle1);
    json = eagle3_config(config, 2, 160);
    json["eagle_aux_hidden_state_layer_ids"] = {1, 2, 3};
    json["max_position_embeddings"] = kTrained, json["head_dim"] = 32;
    random_head(json, {"lm_head.weight", "d2t"}, config, DType::kBF16, 4).write(eagle3);
    const std::vector<std::string> names = {"blocks.2.layers.1.weight", "blocks.0.layers.0.bias", "lm_heads.2.weight"};
    random_head({{"medusa_num_heads", 3}}, names, config, DType::kF32, 5).write(medusa);
    for (const bool markov : {false, true}) {
      json = dflash_config(config, 7, markov);
      json["max_position_embeddings"] = kTrained, json["head_dim"] = 32;
      random_head(json, dflash_extra(markov), config, DType::kBF16, 7).write(markov ? dspark : dflash);
    }
    json = eagle3_config(config, 2, 160);
    json["eagle_aux_hidden_state_layer_ids"] = {1, 2, 3}, json["ptd_token_id"] = 5;
    json["max_position_embeddings"] = kTrained, json["head_dim"] = 32;
    random_head(json, {"lm_head.weight", "d2t", "mask_hidden"}, config, DType::kBF16, 8).write(parallel);
    random_head(longspec_config(config, 40), kLongSpecParts, config, DType::kBF16, 6).write(longspec);
    random_head(assistant_config(config), kAssistantParts, config, DType::kBF16, 7).write(assistant);
  }
};
const Files& files() {
  static const Files all;
  return all;
}

// Small numbers, so that much happens in a few hundred tokens; no costs, so that trees do not depend on the clock.
SpecOptions options(const std::string& preset, const std::string& draft, const Settings& settings) {
  SpecOptions out{.preset = preset, .draft_model = draft, .settings = {{"cost-model", "off"}}};
  out.settings.insert(out.settings.end(), settings.begin(), settings.end());
  return out;
}

Settings with_cache(const char* kind, const char* tree) {
  return {{"cache", kind},  {"budget", "48"}, {"chunk", "8"}, {"recent", "10"}, {"interval", "2"},
          {"window", "40"}, {"tree", tree},   {"nodes", "9"}, {"depth", "4"}};
}

std::vector<EngineCase> make_cases() {
  const Files& f = files();
  std::vector<EngineCase> cases = {
      {"sd", options("sd", f.draft, {})},
      {"specinfer", options("specinfer", f.draft, {})},
      {"opt_tree", options("opt-tree", f.draft, {})},
      {"sequoia", options("sequoia", f.draft, {})},
      {"specexec", options("specexec", f.draft, {})},
      {"specextend",
       options("specextend", f.draft, {{"budget", "48"}, {"chunk", "8"}, {"recent", "10"}, {"interval", "2"}})},
      {"specextend_eagle3",
       options("specextend-eagle3", f.eagle3, {{"budget", "48"}, {"chunk", "8"}, {"recent", "10"}, {"interval", "2"}})},
      {"streamingllm", options("streamingllm", f.draft, {{"budget", "48"}})},
      {"eagle1", options("eagle1", f.eagle1, {})},
      {"eagle2", options("eagle2", f.eagle1, {})},
      {"eagle3", options("eagle3", f.eagle3, {})},
      {"mtp", options("mtp", "", {})},
      {"specextend_mtp",
       options("specextend-mtp", "", {{"budget", "48"}, {"chunk", "8"}, {"recent", "10"}, {"interval", "2"}})},
      {"fuse_mtp", options("fuse", "", {{"fuse-model", "mtp"}})},
      {"medusa", options("medusa", f.medusa, {})},
      {"dflash", options("dflash", f.dflash, {})},
      {"dflash_chain", options("sd", f.dflash, {})},
      {"dflash_retrieval", options("dflash", f.dflash, with_cache("retrieval", "best-first"))},
      {"p_eagle", options("eagle3", f.parallel, {})},
      {"p_eagle_retrieval", options("eagle3", f.parallel, with_cache("retrieval", "best-first"))},
      {"dspark", options("dflash", f.dspark, {})},
      {"dspark_streaming", options("dflash", f.dspark, with_cache("streaming", "eagle2"))},
      {"longspec", options("longspec", f.longspec, {})},
      {"longspec_chain", options("sd", f.longspec, {})},
      {"longspec_retrieval",
       options("longspec", f.longspec,
               {{"cache", "retrieval"}, {"budget", "48"}, {"chunk", "8"}, {"recent", "10"}, {"interval", "2"}})},
      {"assistant", options("eagle2-tree", f.assistant, {})},
      {"assistant_retrieval", options("sd", f.assistant, with_cache("retrieval", "best-first"))},
      {"suffix", options("suffix", "", {})},
      {"suffix_store", options("suffix", "", {{"store", "200"}})},
      {"ngram", options("ngram", "", {})},
      {"long_ngram", options("ngram", "", {{"nodes", "60"}, {"depth", "60"}})},
      {"self_skip", options("self-skip", "", {})},
      {"self_exit", options("self-exit", "", {{"exit", "1"}})},
      {"magicdec", options("magicdec", "", {{"budget", "48"}})},
      {"staged", options("staged", f.draft, {})},
      {"triforce", options("triforce", f.draft, {{"budget", "64"}, {"interval", "3"}, {"inner-budget", "40"}})},
      {"fuse", options("fuse", f.draft, {})},
      {"fuse_eagle3", options("fuse", f.eagle3, {})},
      {"self", options("self", "", {})},
      {"self_verified", options("self", "", {{"budget", "48"}, {"chunk", "8"}, {"recent", "10"}, {"interval", "2"}})},
      {"self_share", options("self", "", {{"budget", "32"}, {"share", "0.3"}, {"chunk", "16"}, {"sink", "0"}})},
      {"partial",
       options("partial", "", {{"budget", "48"}, {"chunk", "8"}, {"recent", "10"}, {"positions", "compact"}})},
      {"self_q4_chain", options("magicdec", "", {{"self-weights", "q4_0"}, {"budget", "48"}})},
      {"self_suffix", options("self-suffix", "", {})},
      {"with_costs", {.preset = "opt-tree", .draft_model = f.draft, .settings = {{"cost-model", "on"}}}},
  };
  for (const char* kind : {"full", "window", "streaming", "retrieval", "once", "quest", "snap", "prune", "random"}) {
    cases.push_back({fmt::format("model_{}", kind), options("sd", f.draft, with_cache(kind, "opt-tree"))});
    cases.push_back({fmt::format("eagle3_{}", kind), options("sd", f.eagle3, with_cache(kind, "eagle2"))});
    cases.push_back({fmt::format("eagle1_{}", kind), options("sd", f.eagle1, with_cache(kind, "chain"))});
  }
  for (const char* rule : {"chain", "block"})
    cases.push_back({fmt::format("rule_{}", rule), options("sd", f.draft, {{"accept", rule}}), false});
  for (const char* rule : {"specinfer", "no-replacement", "traversal"})
    cases.push_back({fmt::format("rule_{}", rule == std::string("no-replacement") ? "no_replacement" : rule),
                     options("specinfer", f.draft, {{"accept", rule}}), false});
  for (const char* rule : {"typical", "margin"})
    cases.push_back(
        {fmt::format("rule_{}", rule), options("eagle2", f.eagle1, {{"accept", rule}, {"allow-lossy", "on"}}), false});
  return cases;
}

std::vector<Token> prompt_for(int kind) {
  return testing::repeating_text(kind == 1 ? 3 : kPrompt - 70 * kind, unsigned(kind) + 1);
}

GenerateOptions request(int kind, EngineRun& run, EngineAnswer& answer) {
  GenerateOptions o;
  o.max_tokens = kTokens, o.ignore_end = true, o.sampling.seed = 5;
  if (kind == 1) o.sampling.temperature = 0.9f, o.sampling.top_k = 20, o.sampling.top_p = 0.9f;
  if (kind == 2) {
    o.sampling.temperature = 1.1f, o.sampling.repeat_penalty = 1.2f, o.sampling.frequency_penalty = 0.1f;
    o.sampling.logit_bias = {{40, 1.5f}, {77, -2.0f}};
  }
  o.on_logits = [&answer](std::span<const float> row) {
    answer.logits.insert(answer.logits.end(), row.begin(), row.end());
  };
  o.on_round = [&run, &answer](const RoundInfo& r) {
    answer.tree_sizes.push_back(int(r.tokens.size()));
    run.drafted += r.verified;
  };
  return o;
}

std::string difference(const char* where, std::span<const EngineAnswer> found, std::span<const EngineAnswer> expected,
                       bool trees) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const EngineAnswer &f = found[i], &e = expected[i];
    if (f.tokens != e.tokens) return fmt::format("{}, request {}: other tokens", where, i);
    if (f.logits.size() != e.logits.size() ||
        std::memcmp(f.logits.data(), e.logits.data(), e.logits.size() * sizeof(float)) != 0)
      return fmt::format("{}, request {}: other logits", where, i);
    if (trees && f.tree_sizes != e.tree_sizes) return fmt::format("{}, request {}: other trees", where, i);
  }
  return "";
}

std::string difference(const EngineRun& found, const EngineRun& expected, bool trees) {
  if (std::string wrong = difference("alone", found.alone, expected.alone, trees); !wrong.empty()) return wrong;
  if (std::string wrong = difference("in a batch", found.together, expected.together, trees); !wrong.empty())
    return wrong;
  const bool same =
      found.evaluated.size() == expected.evaluated.size() &&
      std::memcmp(found.evaluated.data(), expected.evaluated.data(), expected.evaluated.size() * sizeof(float)) == 0;
  return same ? "" : "evaluate() gives other logits";
}

}  // namespace

const std::vector<EngineCase>& engine_cases() {
  static const std::vector<EngineCase> all = make_cases();
  return all;
}

EngineRun run_engine(const SpecOptions& spec, std::unique_ptr<Backend> backend, const std::string& kv_type) {
  EngineOptions o;
  o.model = files().target, o.context = kContext, o.threads = 1, o.chunk = 70, o.max_sessions = kRequestKinds,
  o.spec = spec;
  o.max_outputs = kOutputs, o.kv_type = kv_type;
  EngineImpl engine(o, std::move(backend));
  EngineRun run;
  run.alone.resize(kRequestKinds), run.together.resize(kRequestKinds);
  for (int kind = 0; kind < kRequestKinds; ++kind) {
    EngineAnswer& answer = run.alone[size_t(kind)];
    answer.tokens = engine.start()->generate(prompt_for(kind), request(kind, run, answer)).tokens;
  }
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::vector<Token>> prompts;
  std::vector<GenerateOptions> with;
  for (int kind = 0; kind < kRequestKinds; ++kind) {
    sessions.push_back(engine.start());
    prompts.push_back(prompt_for(kind));
    with.push_back(request(kind, run, run.together[size_t(kind)]));
  }
  std::vector<Request> requests;
  for (size_t i = 0; i < prompts.size(); ++i) requests.push_back({sessions[i].get(), prompts[i], &with[i]});
  const auto results = engine.generate(requests);
  for (size_t i = 0; i < results.size(); ++i) run.together[i].tokens = results[i].tokens;
  sessions.clear();
  const auto session = engine.start();
  const auto logits = session->evaluate(testing::repeating_text(kPrompt, 9), kOutputs);
  run.evaluated.assign(logits.begin(), logits.end());
  GenerateOptions score;
  score.max_tokens = 2, score.ignore_end = true;
  score.on_prompt_token = [&run](const TokenInfo& info) {
    run.evaluated.insert(run.evaluated.end(), info.logits.begin(), info.logits.end());
  };
  session->generate(testing::repeating_text(kPrompt / 2, 8), score);
  return run;
}

std::string text_difference(const EngineRun& found, const EngineRun& expected) {
  return difference(found, expected, false);
}
std::string tree_difference(const EngineRun& found, const EngineRun& expected) {
  return difference(found, expected, true);
}

}  // namespace sx::testing
