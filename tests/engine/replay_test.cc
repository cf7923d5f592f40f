// Replaying drafts along a recorded text (bench/bench_acceptance) is what an engine does: round for round the same
// trees, the same accepted tokens and the same refreshes, for model and head drafters, indexes and cache policies.
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "bench_acceptance_replay.h"
#include "model/heads/head_parts.h"
#include "specextend/specextend.h"
#include "support/model_writer.h"

namespace sx::bench {
namespace {

constexpr int kContext = 400, kChunk = 48, kTokens = 40;

struct Files {
  testing::TempFolder folder;
  std::string target = folder.file("target.gguf");
  Files() {
    testing::TinySpec spec;
    spec.layers = 6, spec.gain = 2, spec.weights = DType::kQ8_0;
    testing::write_tiny_gguf(target, spec);
    const ModelConfig config = testing::tiny_config(spec);
    testing::random_head(testing::eagle3_config(config, 1, 160), {"lm_head.weight", "d2t"}, config, DType::kBF16, 4)
        .write(folder.file("eagle3"));
    testing::random_head(testing::eagle1_config(config), {"fc.weight", "fc.bias"}, config, DType::kF32, 3)
        .write(folder.file("eagle1"));
    spec.weights = DType::kQ4_0;  // often right and sometimes wrong
    testing::write_tiny_gguf(folder.file("small.gguf"), spec);
  }
};
const Files& files() {
  static const Files all;
  return all;
}

std::vector<Token> prompt_of(int length, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Token> tokens;
  for (int i = 0; i < length; ++i)
    tokens.push_back(i > 40 && i % 3 == 0 ? tokens[size_t(i) - 40] : Token(3 + random() % 300));
  return tokens;
}

struct Line {
  const char* name;
  const char* preset;
  const char* draft;  // or empty
  std::vector<std::pair<std::string, std::string>> settings;
};

const std::vector<Line>& lines() {
  static const std::vector<Line> all = {
      {"small", "sd", "small.gguf", {}},
      {"small-tree", "opt-tree", "small.gguf", {}},
      {"retrieval",
       "sd",
       "small.gguf",
       {{"cache", "retrieval"}, {"budget", "64"}, {"chunk", "8"}, {"recent", "8"}, {"interval", "2"}}},
      {"retrieval-layers",
       "eagle2-tree",
       "small.gguf",
       {{"cache", "retrieval"},
        {"budget", "48"},
        {"chunk", "4"},
        {"recent", "8"},
        {"interval", "1"},
        {"layers", "0,-2"}}},
      {"retrieval-all",
       "sd",
       "small.gguf",
       {{"cache", "retrieval"}, {"budget", "64"}, {"chunk", "8"}, {"recent", "8"}, {"layers", "all"}}},
      {"prune", "sd", "small.gguf", {{"cache", "prune"}, {"budget", "64"}, {"chunk", "8"}, {"recent", "8"}}},
      {"streaming", "sd", "small.gguf", {{"cache", "streaming"}, {"budget", "64"}}},
      {"random", "sd", "small.gguf", {{"cache", "random"}, {"budget", "64"}, {"chunk", "8"}, {"recent", "8"}}},
      {"snap", "sd", "small.gguf", {{"cache", "snap"}, {"budget", "64"}}},
      {"quest", "sd", "small.gguf", {{"cache", "quest"}, {"budget", "64"}, {"chunk", "8"}, {"recent", "8"}}},
      {"eagle1", "eagle2", "eagle1", {}},
      {"eagle3", "eagle3", "eagle3", {}},
      {"eagle3-retrieval",
       "eagle3",
       "eagle3",
       {{"cache", "retrieval"},
        {"budget", "64"},
        {"chunk", "8"},
        {"recent", "8"},
        {"interval", "2"},
        {"layers", "1,3"}}},
      {"suffix", "suffix", "", {}},
      {"fuse", "fuse", "eagle3", {}},
  };
  return all;
}

std::string text_of(const Line& line) {
  std::string text = std::string(line.name) + ": preset=" + line.preset;
  for (const auto& [name, value] : line.settings) text += " " + name + "=" + value;
  return *line.draft ? text + " draft-model={drafts}/" + line.draft : text;
}

struct Engined {
  std::vector<Token> tokens;
  FinishReason reason;
  std::vector<ReplayRound> rounds;
};

// Several prompts, one after the other, as one engine takes them.
std::vector<Engined> by_engine(const Line& line, const std::vector<std::vector<Token>>& prompts) {
  EngineOptions o;
  o.model = files().target, o.context = kContext, o.threads = 1, o.chunk = kChunk;
  o.spec.preset = line.preset, o.spec.settings = line.settings;
  o.spec.settings.emplace_back("cost-model", "off");
  o.spec.settings.emplace_back("defer-prefill", "off");
  if (*line.draft) o.spec.draft_model = files().folder.file(line.draft);
  auto engine = Engine::open(o);
  std::vector<Engined> all;
  for (const auto& prompt : prompts) {
    Engined& e = all.emplace_back();
    GenerateOptions g;
    g.max_tokens = kTokens, g.sampling.temperature = 0;
    g.on_round = [&](const RoundInfo& r) {
      ReplayRound round;
      round.drafted = r.verified, round.accepted = r.accepted, round.refreshes = r.refreshes;
      round.tree.assign(r.tokens.begin(), r.tokens.end());
      e.rounds.push_back(round);
    };
    const GenerateResult result = engine->start()->generate(prompt, g);
    e.tokens = result.tokens, e.reason = result.reason;
  }
  return all;
}

TEST(Replay, IsWhatTheEngineDoes) {
  std::vector<std::vector<Token>> prompts;
  for (unsigned i = 0; i < 6; ++i) prompts.push_back(prompt_of(i == 0 ? 1 : 60 + 40 * int(i), i));
  ReplayOptions options;
  options.model = files().target, options.context = kContext, options.chunk = kChunk, options.threads = 1;
  // And some whose answers end by themselves. Which do, one in a hundred or so, is not the same on every CPU.
  Replay search(options, {});
  for (unsigned seed = 6; prompts.size() < 9 && seed < 2000; ++seed) {
    const auto prompt = prompt_of(60 + int(seed % 60), seed);
    if (search.tokenizer().is_end(search.answer(prompt, kTokens).back())) prompts.push_back(prompt);
  }
  std::vector<Configuration> configurations;
  for (const Line& line : lines()) configurations.push_back(parse_configuration(text_of(line), files().folder.path()));
  Replay replay(options, configurations);
  std::vector<std::vector<Token>> answers;
  std::vector<std::vector<Replayed>> played(replay.size());
  int ended = 0;
  for (const auto& prompt : prompts) {
    const auto answer = replay.answer(prompt, kTokens);
    answers.emplace_back(answer.begin(), answer.end());
    ended += replay.tokenizer().is_end(answer.back());
    for (size_t i = 0; i < replay.size(); ++i) played[i].push_back(replay.play(i));
  }
  EXPECT_GT(ended, 0) << "no text ends by itself";
  EXPECT_LT(ended, int(prompts.size()));
  for (size_t i = 0; i < replay.size(); ++i) {
    const auto engined = by_engine(lines()[i], prompts);
    int accepted = 0, refused = 0, refreshes = 0;
    for (size_t k = 0; k < prompts.size(); ++k) {
      SCOPED_TRACE(std::string(lines()[i].name) + ", prompt " + std::to_string(k));
      auto tokens = answers[k];
      if (engined[k].reason == FinishReason::kEnd) tokens.pop_back();
      ASSERT_EQ(engined[k].tokens, tokens);
      const auto& rounds = played[i][k].rounds;
      ASSERT_EQ(rounds.size(), engined[k].rounds.size());
      for (size_t r = 0; r < rounds.size(); ++r) {
        const ReplayRound &found = rounds[r], &expected = engined[k].rounds[r];
        EXPECT_EQ(found.tree, expected.tree) << "round " << r;
        EXPECT_EQ(found.drafted, expected.drafted) << "round " << r;
        EXPECT_EQ(found.accepted, expected.accepted) << "round " << r;
        EXPECT_EQ(found.refreshes, expected.refreshes) << "round " << r;
        accepted += found.accepted, refused += found.drafted - found.accepted;
        refreshes += r > 0 && found.refreshes > rounds[r - 1].refreshes;
      }
    }
    if (*lines()[i].draft) {  // these texts do not repeat themselves
      EXPECT_GT(accepted, 0) << lines()[i].name;
    }
    EXPECT_GT(refused, 0) << lines()[i].name;
    const std::string_view cache = replay.configuration(i).config.cache.policy->name;
    if (cache != "full" && cache != "snap") { EXPECT_GT(refreshes, 5) << lines()[i].name; }
  }
}

TEST(Replay, KnowsWhetherTheEvidenceIsThere) {
  std::vector<Configuration> configurations = {
      parse_configuration("full: preset=sd draft-model={drafts}/small.gguf", files().folder.path()),
      parse_configuration("streaming: preset=sd draft-model={drafts}/small.gguf cache=streaming budget=64 sink=4",
                          files().folder.path())};
  ReplayOptions options;
  options.model = files().target, options.context = kContext, options.chunk = kChunk, options.threads = 1;
  Replay replay(options, configurations);
  const auto prompt = prompt_of(200, 3);
  const auto share = [&](size_t i, CellRange cells) {
    replay.answer(prompt, 4);
    return replay.play(i, cells).rounds[0].evidence;
  };
  EXPECT_EQ(share(0, {50, 60}), 1);
  EXPECT_EQ(share(1, {50, 60}), 0);
  EXPECT_EQ(share(1, {0, 8}), 0.5);  // the first four stay
  EXPECT_EQ(share(1, {180, 190}), 1);
  EXPECT_EQ(share(1, {129, 149}), 0.5);  // the last 60 of 199 begin at 139
}

TEST(Replay, RefusesWhatItCannotReplay) {
  const auto error_of = [](const std::string& line) -> std::string {
    try {
      parse_configuration(line, "");
    } catch (const Error& error) { return error.what(); }
    return "";
  };
  EXPECT_NE(error_of("no colon").find("expected 'name:"), std::string::npos);
  EXPECT_NE(error_of("a: preset=self-exit").find("its own cache"), std::string::npos);
  EXPECT_NE(error_of("a: preset=off").find("does not speculate"), std::string::npos);
  EXPECT_NE(error_of("a: preset=suffix nodse=3").find("nodse"), std::string::npos);
  EXPECT_NE(error_of("a: preset=suffix nodes=3 nodes=4").find("twice"), std::string::npos);
  EXPECT_NE(error_of("a: preset=sd draft-model={drafts}/x").find("--drafts"), std::string::npos);
  EXPECT_EQ(error_of("a: preset=suffix nodes=3"), "");
}

}  // namespace
}  // namespace sx::bench
