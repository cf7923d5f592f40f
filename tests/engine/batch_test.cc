// Requests that come and go while others run, and sessions in other hands: whatever the batch and wherever the cells
// came from, each text has the bytes it has alone.
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <sstream>

#include "batch_models.h"
#include "specextend/specextend.h"

namespace sx {
namespace {

struct Answer {
  std::vector<Token> tokens;
  std::vector<float> logits;
  bool operator==(const Answer&) const = default;
};

struct Ask {
  std::vector<Token> prompt;
  GenerateOptions options;
};

class BatchTest : public ::testing::TestWithParam<const char*> {
 protected:
  BatchTest() { testing::write_batch_models(folder_); }

  // "off", "model", "window" (a small model with a chosen cache), "head" (EAGLE with retrieval), "inner" (the target, a
  // small model ahead of it), "suffix".
  EngineOptions options(const std::string& how, int sessions = 3) {
    EngineOptions o;
    o.model = folder_.file("target.gguf"), o.context = 400, o.threads = 2, o.chunk = 32, o.max_sessions = sessions;
    o.spec.settings = {{"cost-model", "off"}};
    if (how == "off") o.spec = {};
    if (how == "suffix") o.spec.preset = "suffix";
    if (how == "model" || how == "window") o.spec.preset = "sd", o.spec.draft_model = folder_.file("draft.gguf");
    if (how == "head") o.spec.preset = "opt-tree", o.spec.draft_model = folder_.file("head");
    if (how == "inner")
      o.spec.preset = "triforce", o.spec.draft_model = folder_.file("draft.gguf"),
      o.spec.settings.emplace_back("inner-budget", "40");
    if (how == "window" || how == "head" || how == "inner")
      for (auto& s : {std::pair{"cache", how == "window" ? "streaming" : "retrieval"},
                      {"budget", "40"},
                      {"chunk", "8"},
                      {"recent", "10"}})
        o.spec.settings.emplace_back(s.first, s.second);
    return o;
  }
  std::unique_ptr<Engine> open(const std::string& how, int sessions = 3) {
    return Engine::open(options(how, sessions));
  }

  static std::vector<Token> text(int length, int salt) {
    std::vector<Token> tokens;
    for (int i = 0; i < length; ++i) tokens.push_back(Token(3 + (i * i + 7 * salt + i * salt) % 40));
    return tokens;
  }
  static Ask ask(int i) {
    Ask a;
    a.prompt = text(1 + (i * 67) % 211, i);
    a.options.max_tokens = 10 + (i * 13) % 30, a.options.ignore_end = true;
    a.options.speculate = i % 4 != 1;
    if (i % 3 == 1) a.options.sampling.temperature = 0.9f, a.options.sampling.seed = uint64_t(i);
    if (i % 3 == 2)
      a.options.sampling.temperature = 1.3f, a.options.sampling.repeat_penalty = 1.2f, a.options.sampling.top_k = 0;
    return a;
  }
  static void listen(GenerateOptions& o, Answer& answer) {
    o.on_logits = [&answer](std::span<const float> row) {
      answer.logits.insert(answer.logits.end(), row.begin(), row.end());
    };
  }
  static Answer alone(Engine& engine, Ask a) {
    Answer answer;
    listen(a.options, answer);
    answer.tokens = engine.start()->generate(a.prompt, a.options).tokens;
    return answer;
  }

  testing::TempFolder folder_;
};

TEST_P(BatchTest, CompanyChangesNothing) {
  auto engine = open(GetParam()), plain = open("off");
  constexpr int kAsks = 14;
  std::vector<Ask> asks;
  std::vector<Answer> expected;
  for (int i = 0; i < kAsks; ++i) asks.push_back(ask(i)), expected.push_back(alone(*plain, asks.back()));
  std::vector<Answer> found(kAsks);
  std::vector<std::unique_ptr<Session>> sessions;
  for (int i = 0; i < 3; ++i) sessions.push_back(engine->start());
  std::vector<int> running(sessions.size(), -1);
  auto batch = engine->batch();
  std::mt19937 random(5);
  int next = 0, done = 0;
  for (int steps = 0; done < kAsks; ++steps) {
    ASSERT_LT(steps, 5000);
    for (size_t s = 0; s < sessions.size() && next < kAsks; ++s) {
      if (running[s] >= 0 || random() % 3 != 0) continue;
      listen(asks[size_t(next)].options, found[size_t(next)]);
      batch->add({sessions[s].get(), asks[size_t(next)].prompt, &asks[size_t(next)].options});
      running[s] = next++;
    }
    batch->step();
    for (Finished& f : batch->take_finished())
      for (size_t s = 0; s < sessions.size(); ++s)
        if (sessions[s].get() == f.session) found[size_t(running[s])].tokens = f.result.tokens, running[s] = -1, ++done;
  }
  EXPECT_FALSE(batch->step());
  for (int i = 0; i < kAsks; ++i) EXPECT_EQ(found[size_t(i)], expected[size_t(i)]) << i;
}

// A text ends no sooner than it may, however much its end is wanted, drafted or not.
TEST_P(BatchTest, NoEndBeforeTheLeastTokens) {
  auto engine = open(GetParam()), plain = open("off");
  Ask a = ask(1);
  a.options = {};
  a.options.min_tokens = 13, a.options.max_tokens = 40, a.options.stop_tokens = {5};
  a.options.sampling.temperature = 0.9f, a.options.sampling.seed = 4;
  for (Token token = 0; token < plain->vocab(); ++token)
    if (plain->tokenizer().is_end(token) || token == 5) a.options.sampling.logit_bias.emplace_back(token, 100.f);
  ASSERT_GT(a.options.sampling.logit_bias.size(), 1u);
  const Answer expected = alone(*plain, a), found = alone(*engine, a);
  EXPECT_EQ(expected.tokens.size(), 13u);
  EXPECT_EQ(found, expected);
  a.options.min_tokens = 0;
  EXPECT_TRUE(alone(*engine, a).tokens.empty());
}

TEST_P(BatchTest, CopiedSessionsGoOn) {
  auto engine = open(GetParam()), plain = open("off");
  const auto base = text(220, 3);
  GenerateOptions few;
  few.max_tokens = 40, few.ignore_end = true;
  auto first = engine->start(), second = engine->start();
  first->generate(base, few);
  for (int length : {150, 219, 0, 1}) {
    auto longer = std::vector<Token>(base.begin(), base.begin() + length);
    const auto more = text(20, 9);
    longer.insert(longer.end(), more.begin(), more.end());
    second->copy_from(*first, length);
    EXPECT_EQ(second->length(), length);
    EXPECT_TRUE(std::equal(base.begin(), base.begin() + length, second->text().begin(), second->text().end()));
    const auto found = second->generate(longer, few);
    EXPECT_EQ(found.tokens, plain->start()->generate(longer, few).tokens) << length;
    EXPECT_GE(found.timings.cached_tokens, length - 1);
    EXPECT_EQ(found.timings.draft_prompt_ms, 0) << "the drafter read again what it had been given";
  }
  // The one it was taken from is what it was.
  EXPECT_GE(first->generate(base, few).timings.cached_tokens, int(base.size()) - 2);
  EXPECT_THROW(second->copy_from(*first, first->length() + 1), Error);
  EXPECT_THROW(second->copy_from(*plain->start(), 0), Error);
}

TEST_P(BatchTest, SavedSessionsGoOn) {
  const auto base = text(200, 4);
  GenerateOptions few;
  few.max_tokens = 30, few.ignore_end = true;
  std::string saved;
  std::vector<Token> expected;
  auto next = base;
  int since_draft = 0;  // tokens of the last round with a draft and of those behind it
  {
    auto engine = open(GetParam());
    auto session = engine->start();
    auto watched = few;
    watched.on_round = [&](const RoundInfo& r) { since_draft = r.drafted > 0 ? r.accepted + 1 : since_draft + 1; };
    const auto answer = session->generate(base, watched);
    next.insert(next.end(), answer.tokens.begin(), answer.tokens.end());
    std::ostringstream to;
    session->save(to);
    saved = to.str();
    EXPECT_EQ(saved.size(), session->save_bytes());
    expected = session->generate(next, few).tokens;
  }
  auto engine = open(GetParam(), 1);
  auto session = engine->start();
  std::istringstream from(saved);
  session->restore(from);
  const auto found = session->generate(next, few);
  EXPECT_EQ(found.tokens, expected);
  // What a head noted since it last drafted, to run when it drafts again, is not saved.
  const bool head = std::string(GetParam()) == "head";
  EXPECT_GE(found.timings.cached_tokens, int(next.size()) - (head ? since_draft + 1 : 3))
      << since_draft << " " << found.timings.cached_tokens;
  EXPECT_EQ(found.timings.draft_prompt_ms, 0);
  // Broken ones leave an empty session behind that works.
  const auto refused = [&](const std::string& bytes, const char* what) {
    std::istringstream broken(bytes);
    EXPECT_THROW(session->restore(broken), Error) << what;
    EXPECT_EQ(session->length(), 0) << what;
  };
  for (size_t i = 0; i < saved.size(); i += saved.size() / 37 + 1) refused(saved.substr(0, i), "cut off");
  for (size_t i : {size_t(3), size_t(40), saved.size() / 2}) {
    std::string damaged = saved;
    damaged[i] = char(damaged[i] ^ 0x10);
    refused(damaged, "damaged");
  }
  EXPECT_EQ(session->generate(next, few).tokens, expected);
}

INSTANTIATE_TEST_SUITE_P(Drafters, BatchTest, ::testing::Values("off", "suffix", "model", "window", "head", "inner"),
                         [](const auto& which) { return std::string(which.param); });

TEST_F(BatchTest, OthersDecodeWhileAPromptIsRead) {
  auto engine = open("off");
  auto a = engine->start(), b = engine->start(), c = engine->start();
  GenerateOptions talk, brief;
  int said = 0;
  talk.max_tokens = 200, talk.ignore_end = true, talk.on_text = [&](std::string_view) { ++said; };
  brief.max_tokens = 1, brief.ignore_end = true;
  const auto short_prompt = text(4, 1), long_prompt = text(300, 2), other = text(5, 3);
  auto batch = engine->batch();
  batch->add({a.get(), short_prompt, &talk});
  while (said == 0) batch->step();
  batch->add({b.get(), long_prompt, &brief});
  batch->step();
  batch->add({c.get(), other, &brief});
  const int before = said;
  std::vector<Session*> order;
  while (order.size() < 2) {
    batch->step();
    for (const Finished& f : batch->take_finished()) order.push_back(f.session);
  }
  EXPECT_EQ(order, (std::vector<Session*>{c.get(), b.get()}));  // the short one does not wait for the long one
  EXPECT_GE(said - before, int(long_prompt.size()) / 32 - 1);   // a token with every piece of the prompt
}

// The rows that a prompt has behind it are no reason to go first.
TEST_F(BatchTest, AShortPromptGoesBeforeTheEndOfALongOne) {
  auto engine = open("off");
  auto a = engine->start(), b = engine->start();
  GenerateOptions brief;
  brief.max_tokens = 1, brief.ignore_end = true;
  const auto long_prompt = text(300, 2), short_prompt = text(20, 3);
  auto batch = engine->batch();
  batch->add({a.get(), long_prompt, &brief});
  for (int piece = 0; piece < 8; ++piece) batch->step();
  ASSERT_TRUE(batch->take_finished().empty());
  batch->add({b.get(), short_prompt, &brief});
  batch->step();
  batch->step();  // that of the only token
  const auto finished = batch->take_finished();
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].session, b.get());
}

TEST_F(BatchTest, ALongPromptIsNotPassedByForEver) {
  auto engine = open("off", 2);
  auto a = engine->start(), b = engine->start();
  GenerateOptions brief;
  brief.max_tokens = 1, brief.ignore_end = true;
  const auto long_prompt = text(390, 2);
  auto batch = engine->batch();
  batch->add({a.get(), long_prompt, &brief});
  std::vector<std::vector<Token>> prompts;
  prompts.reserve(1000);
  bool waiting = true;
  for (int i = 0; waiting; ++i) {
    ASSERT_LT(i, 200);
    prompts.push_back(text(33, i));
    batch->add({b.get(), prompts.back(), &brief});
    for (bool free = false; !free;) {
      batch->step();
      for (const Finished& f : batch->take_finished()) (f.session == a.get() ? waiting : free) = f.session != a.get();
      if (!waiting) break;
    }
  }
}

TEST_F(BatchTest, TheFirstTokenDoesNotWaitForTheDraft) {
  auto engine = open("model", 1);
  auto session = engine->start();
  GenerateOptions o;
  o.max_tokens = 60, o.ignore_end = true;
  std::vector<int> drafted;
  o.on_round = [&](const RoundInfo& r) { drafted.push_back(r.drafted); };
  const auto found = session->generate(text(300, 1), o);
  EXPECT_EQ(drafted.front(), 0);
  EXPECT_GT(*std::max_element(drafted.begin(), drafted.end()), 0);
  EXPECT_GT(found.timings.draft_prompt_ms, 0);
  drafted.clear();
  session->generate(text(30, 2), o);  // a short one is read with the first draft
  EXPECT_GT(drafted.front(), 0);
}

TEST_F(BatchTest, RequestsNameTheirPreset) {
  EngineOptions o = options("model");
  o.more_specs.resize(1);
  o.more_specs[0].preset = "suffix", o.more_specs[0].settings = {{"cost-model", "off"}};
  auto engine = Engine::open(o), plain = open("off");
  GenerateOptions how;
  how.max_tokens = 60, how.ignore_end = true;
  std::vector<Token> prompt;
  for (int i = 0; i < 50; ++i) prompt.push_back(Token(3 + i % 5));
  const auto expected = plain->start()->generate(prompt, how);
  std::vector<std::vector<int64_t>> histograms;
  for (const char* preset : {"", "sd", "suffix", "off"}) {
    how.preset = preset;
    const auto found = engine->start()->generate(prompt, how);
    EXPECT_EQ(found.tokens, expected.tokens) << preset;
    EXPECT_EQ(found.spec.drafted > 0, how.preset != "off") << preset;
    histograms.push_back(found.spec.histogram);
  }
  EXPECT_EQ(histograms[0], histograms[1]);
  EXPECT_NE(histograms[1], histograms[2]);
  how.preset = "eagle3";
  EXPECT_THROW(engine->start()->generate(prompt, how), Error);
  how.preset = "sd", how.draft_nodes = 2, how.draft_depth = 1;
  how.on_round = [](const RoundInfo& r) {
    EXPECT_LE(r.verified, 2);
    for (int32_t parent : r.parents) EXPECT_LE(parent, 0);
  };
  EXPECT_EQ(engine->start()->generate(prompt, how).tokens, expected.tokens);
  o.more_specs.push_back(o.more_specs[0]);
  EXPECT_THROW(Engine::open(o), Error);  // twice the same name
}

TEST_F(BatchTest, TokensTellHowTheyCame) {
  auto engine = open("model", 1);
  GenerateOptions how;
  how.max_tokens = 60, how.ignore_end = true, how.token_logits = true;
  std::vector<Token> tokens;
  std::vector<int> depths;
  int accepted = 0;
  how.on_round = [&](const RoundInfo& r) { accepted += r.accepted; };
  how.on_token = [&](const TokenInfo& t) {
    tokens.push_back(t.token);
    depths.push_back(t.depth);
    ASSERT_EQ(t.logits.size(), size_t(engine->vocab()));
    EXPECT_EQ(std::max_element(t.logits.begin(), t.logits.end()) - t.logits.begin(), t.token);
  };
  const auto found = engine->start()->generate(text(30, 2), how);
  EXPECT_EQ(tokens, found.tokens);
  EXPECT_EQ(std::count_if(depths.begin(), depths.end(), [](int d) { return d > 0; }), accepted);
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace sx
