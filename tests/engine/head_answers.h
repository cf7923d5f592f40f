// What tests of engines with draft heads share: answers with all that was drafted for them, and properties that hold
// for every head.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "specextend/specextend.h"
#include "support/random_text.h"

namespace sx::testing {

using Trees = std::vector<std::vector<Token>>;

struct Answer {
  std::vector<Token> tokens;
  std::vector<float> logits;
  Trees trees;  // of each round
  size_t drafted() const {
    size_t count = 0;
    for (const auto& tree : trees) count += tree.size() - 1;
    return count;
  }
};

inline GenerateOptions asking(Answer& out, float temperature, int tokens) {
  GenerateOptions o;
  o.max_tokens = tokens, o.ignore_end = true, o.sampling.temperature = temperature, o.sampling.seed = 5;
  o.on_logits = [&out](std::span<const float> row) { out.logits.insert(out.logits.end(), row.begin(), row.end()); };
  o.on_round = [&out](const RoundInfo& r) { out.trees.emplace_back(r.tokens.begin(), r.tokens.end()); };
  return o;
}

// Above temperature 1 with penalties and top-k.
inline Answer answer(Session& session, const std::vector<Token>& prompt, float temperature, int tokens,
                     bool speculate = true) {
  Answer out;
  GenerateOptions o = asking(out, temperature, tokens);
  o.speculate = speculate;
  if (temperature > 1) o.sampling.repeat_penalty = 1.2f, o.sampling.top_k = 40;
  out.tokens = session.generate(prompt, o).tokens;
  return out;
}

inline void expect_same(const Answer& found, const Answer& expected, const std::string& what) {
  EXPECT_EQ(found.tokens, expected.tokens) << what;
  ASSERT_EQ(found.logits.size(), expected.logits.size()) << what;
  EXPECT_EQ(std::memcmp(found.logits.data(), expected.logits.data(), found.logits.size() * sizeof(float)), 0) << what;
}

// Random text of tokens that the smallest vocabularies have, too.
inline std::vector<Token> any_text(int length, unsigned seed) {
  auto text = random_text(length, seed);
  for (Token& token : text) token %= 256;
  return text;
}

// Few cells, so that hundreds of tokens are more than they are.
inline const std::vector<std::pair<std::string, std::string>> kFewCells = {
    {"budget", "48"}, {"chunk", "8"}, {"recent", "10"}, {"interval", "2"}};

// Room for a few hundred tokens; trees do not depend on the clock. Without a preset: plain decoding.
inline EngineOptions small_options(const std::string& model, const std::string& preset, const std::string& draft,
                                   int chunk, int sessions = 1) {
  EngineOptions o;
  o.model = model, o.context = 400, o.threads = 1, o.chunk = chunk, o.max_sessions = sessions;
  if (!preset.empty()) o.spec.preset = preset, o.spec.draft_model = draft, o.spec.settings = {{"cost-model", "off"}};
  return o;
}
inline EngineOptions with_settings(EngineOptions o, const std::vector<std::pair<std::string, std::string>>& settings) {
  o.spec.settings.insert(o.spec.settings.end(), settings.begin(), settings.end());
  return o;
}

// What plain decoding answers to prompts of these lengths at these temperatures: what every draft has to leave as it
// is, to the bit.
class PlainAnswers {
 public:
  PlainAnswers(const std::string& model, std::initializer_list<float> temperatures, std::initializer_list<int> lengths,
               int tokens = 40)
      : tokens_(tokens) {
    const auto engine = Engine::open(small_options(model, "", "", 64));
    for (const float temperature : temperatures)
      for (const int length : lengths) {
        Case c{any_text(length, unsigned(length)), temperature, {}};
        c.answer = answer(*engine->start(), c.prompt, temperature, tokens);
        cases_.push_back(std::move(c));
      }
  }
  // `least`: so many tokens are drafted at least for each answer.
  void expect_same_text(Engine& engine, size_t least, const std::string& what) const {
    for (const Case& c : cases_) {
      const std::string which =
          what + ", " + std::to_string(c.prompt.size()) + " tokens at " + std::to_string(c.temperature);
      const Answer found = answer(*engine.start(), c.prompt, c.temperature, tokens_);
      expect_same(found, c.answer, which);
      EXPECT_GT(found.drafted(), least) << which;
    }
  }

 private:
  struct Case {
    std::vector<Token> prompt;
    float temperature;
    Answer answer;
  };
  int tokens_;
  std::vector<Case> cases_;
};

// What opening an engine says where it is refused; "" if it is not.
inline std::string refusal(const EngineOptions& options) {
  try {
    Engine::open(options);
  } catch (const Error& error) { return error.what(); }
  return {};
}

// Three requests in a batch get what each gets alone, trees included.
inline void expect_batches_like_single(Engine& engine, float temperature, const std::string& what) {
  std::vector<std::vector<Token>> prompts;
  std::vector<Answer> alone, together(3);
  for (unsigned i = 0; i < 3; ++i) {
    prompts.push_back(any_text(30 + 40 * int(i), 30 + i));
    alone.push_back(answer(*engine.start(), prompts[i], temperature, 15 + 15 * int(i)));
  }
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<GenerateOptions> with(3);
  std::vector<Request> requests;
  for (size_t i = 0; i < 3; ++i) {
    sessions.push_back(engine.start());
    with[i] = asking(together[i], temperature, 15 + 15 * int(i));
    requests.push_back({sessions[i].get(), prompts[i], &with[i]});
  }
  const auto results = engine.generate(requests);
  for (size_t i = 0; i < 3; ++i) {
    together[i].tokens = results[i].tokens;
    expect_same(together[i], alone[i], what);
    EXPECT_EQ(together[i].trees, alone[i].trees) << what << ' ' << i;
  }
}

// Drafts are a function of the text: not of chunks, of what the session held before, or of which rounds were drafted.
inline void expect_drafts_of_text_alone(const std::function<std::unique_ptr<Engine>(int chunk)>& open,
                                        std::initializer_list<int> chunks, size_t least, const std::string& what) {
  constexpr int kTokens = 40;
  const auto prompt = any_text(90, 7), other = any_text(120, 8);
  const Answer expected = answer(*open(256)->start(), prompt, 0, kTokens);
  EXPECT_GT(expected.drafted(), least) << what;
  for (const int chunk : chunks) {
    auto engine = open(chunk);
    auto session = engine->start();
    const auto expect_again = [&](const char* after) {
      EXPECT_EQ(answer(*session, prompt, 0, kTokens).trees, expected.trees)
          << what << " chunk " << chunk << ", " << after;
    };
    expect_again("at first");
    expect_again("from the cache");
    answer(*session, other, 0, 20);
    expect_again("after another prompt");
    auto longer = prompt;
    longer.insert(longer.end(), other.begin(), other.begin() + 60);
    answer(*session, longer, 0, 20);
    expect_again("after a longer one");
    session->evaluate(std::span(other).first(10), 1);
    session->truncate(40);
    expect_again("after truncation");
    session->truncate(90);
    session->truncate(89);  // what goes before the pending token: nothing is run unless it is asked for
    expect_again("after two truncations");
    session->truncate(0);
    expect_again("from nothing");
  }
  // Undrafted rounds are followed too: going on from them is like going on from the text.
  auto engine = open(64);
  auto session = engine->start();
  const Answer begun = answer(*session, prompt, 0, 100, false);
  auto text = prompt;
  text.insert(text.end(), begun.tokens.begin(), begun.tokens.end());
  const Answer went_on = answer(*session, text, 0, 20);
  session.reset();
  EXPECT_EQ(answer(*engine->start(), text, 0, 20).trees, went_on.trees) << what;
  EXPECT_GT(went_on.drafted(), least / 4) << what;
}

}  // namespace sx::testing
