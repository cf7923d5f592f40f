// Draft caches in whole engines: whatever a draft works on, the text never changes; what it works on is a function of
// the text, not of what the session held before. The drafts here were "trained" for fewer tokens than the texts have.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

#include "model/heads/head_parts.h"
#include "specextend/specextend.h"
#include "support/model_writer.h"
#include "support/random_text.h"

namespace sx {
namespace {

using testing::TempFolder;
using testing::TinySpec;
using Settings = std::vector<std::pair<std::string, std::string>>;

constexpr int kContext = 640, kTrained = 128;
constexpr int kSlack = 256;  // cells that may be appended between refreshes (DraftCache)

struct Files {
  TempFolder folder;
  std::string target = folder.file("target.gguf"), model = folder.file("draft.gguf"), eagle1 = folder.file("eagle1"),
              eagle3 = folder.file("eagle3"), far = folder.file("far.gguf");
  Files() {
    TinySpec spec;
    spec.layers = 3, spec.gain = 2, spec.weights = DType::kQ8_0;
    testing::write_tiny_gguf(target, spec);
    const ModelConfig config = testing::tiny_config(spec);
    spec.weights = DType::kQ4_0;
    testing::write_tiny_gguf(far, spec);
    spec.context = kTrained;
    testing::write_tiny_gguf(model, spec);
    auto json = testing::eagle1_config(config);
    json["max_position_embeddings"] = kTrained;
    testing::random_head(json, {"fc.weight", "fc.bias"}, config, DType::kF32, 3).write(eagle1);
    json = testing::eagle3_config(config, 2, 160);
    json["eagle_aux_hidden_state_layer_ids"] = {1, 2, 3};
    json["max_position_embeddings"] = kTrained;
    testing::random_head(json, {"lm_head.weight", "d2t"}, config, DType::kBF16, 4).write(eagle3);
  }
};
const Files& files() {
  static const Files all;
  return all;
}

// Small numbers, so that much happens in a few hundred tokens.
const Settings kSmall = {{"cost-model", "off"}, {"defer-prefill", "off"}, {"budget", "48"},
                         {"chunk", "8"},        {"recent", "10"},         {"interval", "2"},
                         {"window", "40"},      {"nodes", "9"},           {"depth", "4"}};

EngineOptions options(const std::string& draft, const Settings& settings, int sessions = 1) {
  EngineOptions o;
  o.model = files().target, o.context = kContext, o.threads = 1, o.chunk = 50, o.max_sessions = sessions;
  if (draft.empty()) return o;
  o.spec.preset = "sd", o.spec.draft_model = draft, o.spec.settings = kSmall;
  o.spec.settings.insert(o.spec.settings.end(), settings.begin(), settings.end());
  return o;
}

std::vector<Token> joined(std::vector<Token> a, std::span<const Token> b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct RoundSeen {
  std::vector<Token> tree;
  std::vector<int32_t> parents, cells;
  bool operator==(const RoundSeen&) const = default;
};

struct Answer {
  std::vector<Token> tokens;
  std::vector<float> logits;
  std::vector<RoundSeen> rounds;
  std::vector<int> refreshes, accepted_in;  // of each round
  int drafted = 0, accepted = 0;
};

// Collects what a request gives into an answer.
GenerateOptions asked(Answer& out, float temperature, int tokens) {
  GenerateOptions o;
  o.max_tokens = tokens, o.ignore_end = true, o.sampling.temperature = temperature, o.sampling.seed = 5;
  o.on_logits = [&out](std::span<const float> row) { out.logits.insert(out.logits.end(), row.begin(), row.end()); };
  o.on_round = [&out](const RoundInfo& r) {
    out.rounds.push_back(
        {{r.tokens.begin(), r.tokens.end()}, {r.parents.begin(), r.parents.end()}, {r.cells.begin(), r.cells.end()}});
    out.refreshes.push_back(r.refreshes), out.accepted_in.push_back(r.accepted);
    out.drafted += r.verified, out.accepted += r.accepted;
  };
  return o;
}

Answer answer(Session& session, const std::vector<Token>& prompt, float temperature, int tokens,
              bool speculate = true) {
  Answer out;
  GenerateOptions o = asked(out, temperature, tokens);
  o.speculate = speculate;
  out.tokens = session.generate(prompt, o).tokens;
  return out;
}

void expect_same_text(const Answer& found, const Answer& expected) {
  EXPECT_EQ(found.tokens, expected.tokens);
  ASSERT_EQ(found.logits.size(), expected.logits.size());
  EXPECT_EQ(std::memcmp(found.logits.data(), expected.logits.data(), found.logits.size() * sizeof(float)), 0);
}

// Plain answers to the prompts most tests use, by prompt and temperature.
constexpr int kLengths[] = {1, 60, 310};
constexpr int kAnswer = 28;
std::vector<Token> usual_prompt(size_t i) { return testing::random_text(kLengths[i], 20 + unsigned(i)); }
const Answer& plain_answer(size_t i, float temperature) {
  static const auto all = [] {
    std::vector<std::array<Answer, 2>> answers(3);
    auto engine = Engine::open(options("", {}));
    for (size_t n = 0; n < 3; ++n)
      for (size_t t = 0; t < 2; ++t)
        answers[n][t] = answer(*engine->start(), usual_prompt(n), t == 0 ? 0.0f : 0.9f, kAnswer);
    return answers;
  }();
  return all[i][temperature == 0 ? 0 : 1];
}

// A batch of three texts of different lengths. Returns how many cells were left out at most, and how much was accepted.
struct BatchSeen {
  int left_out = 0, accepted = 0;
};
BatchSeen expect_exact_batches(const std::string& draft, const Settings& settings,
                               std::initializer_list<float> temperatures = {0.0f, 0.9f}) {
  auto engine = Engine::open(options(draft, settings, 3));
  BatchSeen seen;
  for (const float temperature : temperatures) {
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::vector<Token>> prompts;
    std::vector<Answer> found(3);
    std::vector<GenerateOptions> how;
    std::vector<Request> requests;
    for (size_t i = 0; i < 3; ++i) {
      prompts.push_back(usual_prompt(i));
      how.push_back(asked(found[i], temperature, kAnswer));
      sessions.push_back(engine->start());
    }
    for (size_t i = 0; i < 3; ++i) requests.push_back({sessions[i].get(), prompts[i], &how[i]});
    const auto results = engine->generate(requests);
    for (size_t i = 0; i < 3; ++i) {
      SCOPED_TRACE(fmt::format("prompt of {}, temperature {}", kLengths[i], temperature));
      found[i].tokens = results[i].tokens;
      expect_same_text(found[i], plain_answer(i, temperature));
      EXPECT_GT(found[i].drafted, 20);
      seen.accepted += found[i].accepted;
      for (const RoundSeen& r : found[i].rounds)
        if (!r.cells.empty()) seen.left_out = std::max(seen.left_out, r.cells.back() + 1 - int(r.cells.size()));
    }
  }
  return seen;
}

const std::vector<Settings> kPolicies = {
    {{"cache", "full"}},      {{"cache", "full"}, {"positions", "original"}},
    {{"cache", "window"}},    {{"cache", "streaming"}},
    {{"cache", "retrieval"}}, {{"cache", "once"}},
    {{"cache", "quest"}},     {{"cache", "snap"}},
    {{"cache", "prune"}},     {{"cache", "random"}},
};
std::string text_of(const Settings& settings) {
  std::string text;
  for (const auto& [name, value] : settings) text += fmt::format("{}={} ", name, value);
  return text;
}
Settings with(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}
bool chooses(const Settings& policy) { return policy[0].second != "full"; }

TEST(DraftCacheExactness, EveryPolicyDrafterAndTree) {
  for (const std::string& draft : {files().model, files().eagle1, files().eagle3}) {
    int accepted = 0;
    for (const Settings& policy : kPolicies)
      for (const char* tree : {"chain", "eagle2", "opt-tree"}) {
        SCOPED_TRACE(draft + " " + text_of(policy) + tree);
        const BatchSeen seen = expect_exact_batches(draft, with(policy, {{"tree", tree}}));
        if (chooses(policy)) EXPECT_GT(seen.left_out, 200);  // it did work on less than the text
        else EXPECT_EQ(seen.left_out, 0);
        accepted += seen.accepted;
      }
    EXPECT_GT(accepted, draft == files().model ? 400 : 80) << draft;
  }
}

TEST(DraftCacheExactness, Variants) {
  const Settings retrieval = {{"cache", "retrieval"}};
  std::vector<Settings> variants;
  for (const char* layers : {"all", "0", "-1", "0,2"}) variants.push_back(with(retrieval, {{"layers", layers}}));
  for (const char* cache : {"window", "retrieval", "once", "quest", "snap"}) {
    variants.push_back({{"cache", cache}, {"positions", "original"}});
    variants.push_back({{"cache", cache}, {"chunk", "1"}, {"interval", "1"}});
    variants.push_back({{"cache", cache}, {"chunk", "48"}, {"sink", "0"}, {"recent", "0"}});
    variants.push_back({{"cache", cache}, {"interval", "3"}, {"window", "0"}});
    variants.push_back({{"cache", cache}, {"budget", "100000"}});
  }
  for (const char* type : {"f32", "f16", "bf16", "q8_0"})
    for (const char* cache : {"full", "retrieval", "snap"})
      variants.push_back({{"cache", cache}, {"draft-kv-type", type}});
  variants.push_back({{"cache", "prune"}, {"layers", "all"}});
  for (size_t i = 0; i < variants.size(); ++i) {
    // Every variant with both kinds of drafts, each with one of the temperatures.
    const float temperature = i % 2 == 0 ? 0.0f : 0.9f;
    SCOPED_TRACE(text_of(variants[i]));
    expect_exact_batches(files().model, with(variants[i], {{"tree", "opt-tree"}}), {temperature});
    expect_exact_batches(files().eagle3, with(variants[i], {{"tree", "eagle2"}}), {0.9f - temperature});
  }
}

// What a session holds from earlier requests is no part of an answer: texts are gone on with, cut in the prompt and in
// what was generated, left in the middle of a round, decoded plainly in between.
TEST(DraftCacheExactness, ManyTurns) {
  auto plain = Engine::open(options("", {}));
  for (const std::string& draft : {files().model, files().eagle3})
    for (const Settings& policy : kPolicies) {
      SCOPED_TRACE(draft + " " + text_of(policy));
      auto engine = Engine::open(options(draft, policy));
      auto session = engine->start();
      const auto expect_exact = [&](const std::vector<Token>& prompt, float temperature, bool speculate = true) {
        const Answer expected = answer(*plain->start(), prompt, temperature, 24);
        expect_same_text(answer(*session, prompt, temperature, 24, speculate), expected);
        return joined(prompt, expected.tokens);
      };
      auto text = expect_exact(testing::random_text(150, 1), 0);
      const size_t generated = text.size() - 10;
      text = expect_exact(joined(text, testing::random_text(30, 2)), 0.9f);     // a second turn
      text = expect_exact(joined(text, testing::random_text(1, 3)), 0, false);  // a third, decoded plainly
      text = expect_exact(joined(text, testing::random_text(2, 4)), 0);         // and gone on with
      session->truncate(int(generated));                                        // into what the first turn generated
      expect_exact({text.begin(), text.begin() + ptrdiff_t(generated)}, 0);
      expect_exact(joined({text.begin(), text.begin() + 90}, testing::random_text(40, 5)),
                   0.9f);  // into the first prompt
      int rounds = 0;
      GenerateOptions broken;
      broken.max_tokens = 60, broken.ignore_end = true;
      broken.cancelled = [&] { return ++rounds > 12; };
      session->generate(text, broken);
      EXPECT_GT(rounds, 12);
      expect_exact(text, 0.9f);
      session->truncate(0);
      expect_exact(testing::random_text(70, 6), 0);
    }
}

// --- What is drafted.

// Also without the slightest trace of an earlier, longer request: of the same session, and of another one in its place.
TEST(DraftCacheState, IsAFunctionOfTheText) {
  const auto prompt = testing::random_text(200, 7), longer = testing::random_text(330, 8),
             shared = joined({prompt.begin(), prompt.begin() + 120}, testing::random_text(200, 9));
  for (const std::string& draft : {files().model, files().eagle1, files().eagle3})
    for (const Settings& policy : kPolicies)
      for (const Settings& more : {Settings{}, Settings{{"layers", "all"}, {"interval", "1"}}}) {
        if (!more.empty() && policy[0].second != "retrieval") continue;
        SCOPED_TRACE(draft + " " + text_of(policy) + text_of(more));
        auto fresh = Engine::open(options(draft, with(policy, more)));
        const Answer expected = answer(*fresh->start(), prompt, 0, 30);
        auto engine = Engine::open(options(draft, with(policy, more)));
        answer(*engine->start(), longer, 0, 30);
        answer(*engine->start(), longer, 0, 30, false);
        auto session = engine->start();
        const auto expect_same = [&](const char* when) {
          EXPECT_EQ(answer(*session, prompt, 0, 30).rounds, expected.rounds) << when;
        };
        expect_same("after another session");
        expect_same("again, the prompt from the cache");
        answer(*session, longer, 0, 30);
        expect_same("after another prompt");
        answer(*session, shared, 0, 30);
        expect_same("after a longer prompt that begins with the same 120 tokens");
        answer(*session, shared, 0, 30, false);
        expect_same("after that was decoded plainly");
        answer(*session, prompt, 0, 30, false);
        expect_same("after it was decoded plainly itself");
        session->truncate(150);
        expect_same("after a cut");
      }
}

// A cut behind the prompt takes the target's last query, and so do tokens decoded plainly; without one the draft would
// fall back on the ends of the text.
TEST(DraftCacheState, TheTargetIsAskedAgain) {
  for (const std::string& draft : {files().model, files().eagle3})
    for (const bool plainly : {false, true}) {
      auto engine = Engine::open(options(draft, {{"cache", "retrieval"}, {"interval", "1"}}));
      auto session = engine->start();
      auto text = testing::random_text(200, 18);
      text = joined(text, answer(*session, text, 0, 30, !plainly).tokens);
      if (!plainly) text.pop_back();  // a head keeps all pairs then, and one state that waits
      const Answer found = answer(*session, text, 0, 10);
      auto cells = found.rounds[0].cells;
      while (!cells.empty() && cells.back() >= int(text.size()) - 1) cells.pop_back();  // those the round has added
      const auto gap = std::adjacent_find(cells.begin() + 4, cells.end(), [](int a, int b) { return a + 1 != b; });
      EXPECT_NE(gap, cells.end()) << draft << ": only the first and the last cells after "
                                  << (plainly ? "plain decoding" : "a cut");
    }
}

// Where nothing is bounded, a cell is the same whether it was run as part of a prompt, behind it, or as an accepted
// node of a tree.
TEST(DraftCacheState, AcceptedNodesKeepTheirCells) {
  for (const char* tree : {"chain", "eagle2", "opt-tree"})
    for (const Settings& policy : {Settings{{"cache", "full"}, {"positions", "original"}},
                                   Settings{{"cache", "retrieval"}, {"budget", "640"}}}) {
      SCOPED_TRACE(tree + text_of(policy));
      auto engine = Engine::open(options(files().far, with(policy, {{"window", "0"}, {"tree", tree}})));
      auto session = engine->start();
      const auto prompt = testing::random_text(100, 17);
      const Answer first = answer(*session, prompt, 0, 60);
      EXPECT_GT(first.accepted, 8);
      const auto text = joined(prompt, first.tokens);
      const Answer second = answer(*session, text, 0, 40);
      session.reset();
      EXPECT_EQ(answer(*engine->start(), text, 0, 40).rounds, second.rounds);
    }
}

TEST(DraftCacheState, BatchesWorkOnTheSameCellsAsSingleRequests) {
  for (const std::string& draft : {files().model, files().eagle3})
    for (const Settings& policy : kPolicies) {
      SCOPED_TRACE(draft + " " + text_of(policy));
      auto engine = Engine::open(options(draft, policy, 3));
      std::vector<std::unique_ptr<Session>> sessions;
      std::vector<std::vector<Token>> prompts;
      std::vector<Answer> alone, together(3);
      std::vector<GenerateOptions> how;
      std::vector<Request> requests;
      for (size_t i = 0; i < 3; ++i) {
        prompts.push_back(usual_prompt(i));
        alone.push_back(answer(*engine->start(), prompts[i], 0, 20));
        how.push_back(asked(together[i], 0, 20));
      }
      for (size_t i = 0; i < 3; ++i) {
        sessions.push_back(engine->start());
        requests.push_back({sessions[i].get(), prompts[i], &how[i]});
      }
      engine->generate(requests);
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(together[i].rounds, alone[i].rounds) << i;
    }
}

// A budget that holds the whole text is no bound: rounds are those of the full cache, if the prompt was seen through
// the same window and the text stays within the trained length.
TEST(DraftCacheState, WithRoomForAllItIsTheFullCache) {
  const auto prompt = testing::random_text(300, 11);
  for (const char* window : {"0", "64"})
    for (const char* type : {"", "q8_0"}) {
      const Settings same = {{"window", window}, {"draft-kv-type", type}, {"budget", "640"}, {"tree", "opt-tree"}};
      auto full = Engine::open(options(files().far, with(same, {{"cache", "full"}, {"positions", "original"}})));
      const Answer expected = answer(*full->start(), prompt, 0, 80);
      EXPECT_GT(expected.accepted, 20);
      for (const Settings& policy : kPolicies) {
        SCOPED_TRACE(text_of(policy) + window + type);
        auto engine = Engine::open(options(files().far, with(same, policy)));
        const Answer found = answer(*engine->start(), prompt, 0, 80);
        ASSERT_EQ(found.rounds.size(), expected.rounds.size());
        for (size_t i = 0; i < found.rounds.size(); ++i) {
          EXPECT_EQ(found.rounds[i].tree, expected.rounds[i].tree) << "round " << i;
          std::vector<int32_t> all(found.rounds[i].cells.size());
          std::iota(all.begin(), all.end(), 0);
          EXPECT_EQ(found.rounds[i].cells, all) << "round " << i;
        }
      }
    }
}

TEST(DraftCacheState, CellsAreInOrderWithinTheBudgetAndHoldBothEnds) {
  constexpr int kSink = 4, kRecent = 10, kBudget = 48, kInterval = 2, kDeep = 4;
  for (const std::string& draft : {files().model, files().eagle3})
    for (const Settings& policy : kPolicies) {
      if (!chooses(policy)) continue;
      SCOPED_TRACE(draft + " " + text_of(policy));
      const bool once = policy[0].second == "once" || policy[0].second == "snap";
      auto engine = Engine::open(options(draft, policy));
      const auto prompt = testing::random_text(200, 13);
      const Answer found = answer(*engine->start(), prompt, 0, 60);
      std::vector<int32_t> before;
      int length = int(prompt.size());  // of the text when the round begins, pending token included
      for (size_t i = 0; i < found.rounds.size(); ++i) {
        SCOPED_TRACE(i);
        const auto& cells = found.rounds[i].cells;
        ASSERT_FALSE(cells.empty());
        EXPECT_TRUE(std::adjacent_find(cells.begin(), cells.end(), std::greater_equal<>()) == cells.end());
        EXPECT_LE(int(cells.size()), once ? kBudget + kSlack : kBudget + kInterval * (kDeep + 1));
        for (int c = 0; c < kSink && policy[0].second != "window"; ++c) EXPECT_EQ(cells[size_t(c)], c);
        // All of the last tokens, to the pending one at least (a head's pairs end one before it) where there was a
        // draft.
        const int end = cells.back() + 1;
        if (found.rounds[i].tree.size() > 1) { EXPECT_GE(end, length - (draft == files().eagle3 ? 1 : 0)); }
        for (int k = 1; k <= kRecent; ++k) EXPECT_EQ(cells[cells.size() - size_t(k)], end - k);
        if (i > 0 && found.refreshes[i] == found.refreshes[i - 1]) {  // nothing is lost between refreshes
          ASSERT_GE(cells.size(), before.size());
          EXPECT_TRUE(std::equal(before.begin(), before.end(), cells.begin()));
          for (size_t k = before.size(); k < cells.size(); ++k)
            EXPECT_EQ(cells[k], before.back() + 1 + int(k - before.size()));
        }
        before = cells;
        length += found.accepted_in[i] + 1;
      }
      const auto drafted =
          std::count_if(found.rounds.begin(), found.rounds.end(), [](const RoundSeen& r) { return r.tree.size() > 1; });
      EXPECT_EQ(found.refreshes.back(), once ? 1 : (drafted + kInterval - 1) / kInterval);
    }
}

// A text that outgrows the room behind its choice gets a new one, whatever the interval.
TEST(DraftCacheState, RoomIsMadeWhenItIsNeeded) {
  auto plain = Engine::open(options("", {}));
  const auto prompt = testing::random_text(100, 15);
  const Answer expected = answer(*plain->start(), prompt, 0, kSlack + 150);
  for (const std::string& draft : {files().model, files().eagle3})
    for (const Settings& policy : kPolicies) {
      SCOPED_TRACE(draft + " " + text_of(policy));
      auto engine = Engine::open(options(draft, with(policy, {{"interval", "100000"}, {"positions", "original"}})));
      const Answer found = answer(*engine->start(), prompt, 0, kSlack + 150);
      expect_same_text(found, expected);
      if (chooses(policy)) { EXPECT_THAT(found.refreshes.back(), ::testing::AnyOf(2, 3)); }
    }
}

// A draft that is always right, in chains longer than the room for new cells.
TEST(DraftCacheState, LongAcceptedChainsFitOrAreRunAgain) {
  TempFolder folder;
  TinySpec spec;
  spec.layers = 1, spec.weights = DType::kQ8_0, spec.gain = 2;
  testing::write_tiny_gguf(folder.file("target.gguf"), spec);
  EngineOptions o;
  o.model = folder.file("target.gguf"), o.context = 1200, o.threads = 1, o.chunk = 50;
  const auto prompt = testing::random_text(40, 16);
  const Answer expected = answer(*Engine::open(o)->start(), prompt, 0, 1100);
  for (const char* cache : {"full", "window", "retrieval"})
    for (const char* budget : {"4000", "600"}) {
      o.spec = {"sd",
                o.model,
                {{"cost-model", "off"},
                 {"cache", cache},
                 {"budget", budget},
                 {"nodes", "400"},
                 {"interval", "100000"},
                 {"window", "0"}}};
      const Answer found = answer(*Engine::open(o)->start(), prompt, 0, 1100);
      expect_same_text(found, expected);
      EXPECT_GT(found.accepted, 1000) << cache << " " << budget;
    }
}

// --- What is refused.

TEST(DraftCacheRefusals, NameTheCulprit) {
  const auto error_with = [](const std::string& draft, const Settings& settings) -> std::string {
    try {
      Engine::open(options(draft, settings));
    } catch (const Error& error) { return error.what(); }
    return "";
  };
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  for (const std::string& draft : {files().model, files().eagle3})
    for (const char* cache : {"retrieval", "prune"}) {
      for (const char* layer : {"3", "-4"})
        EXPECT_THAT(error_with(draft, {{"cache", cache}, {"layers", layer}}),
                    AllOf(HasSubstr("layer"), HasSubstr(layer), HasSubstr("0 to 2")));
      EXPECT_EQ(error_with(draft, {{"cache", cache}, {"layers", "-3,2"}}), "");
    }
  EXPECT_EQ(error_with(files().model, {{"cache", "streaming"}, {"layers", "7"}}), "") << "nobody reads it";
  EngineOptions o = options("", {});
  o.spec = {"self-skip", "", {{"cache", "quest"}}};
  try {
    Engine::open(o);
    ADD_FAILURE() << "a cache that asks the draft was taken where the target drafts";
  } catch (const Error& error) { EXPECT_THAT(error.what(), AllOf(HasSubstr("cache"), HasSubstr("self-skip"))); }
}

}  // namespace
}  // namespace sx
