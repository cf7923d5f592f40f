// Sessions that share the memory of a common prefix (Session::copy_from): each goes on as if it had read its text
// alone, bit for bit, whatever the others do meanwhile, in every KV type, with windows, drafts and any number of
// threads.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "specextend/kv_memory.h"
#include "specextend/specextend.h"
#include "support/model_writer.h"

namespace sx {
namespace {

struct Case {
  const char* kv_type;
  int window, threads;
};

std::vector<Token> random_tokens(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Token> tokens(static_cast<size_t>(count));
  for (auto& t : tokens) t = Token(random() % 250);
  return tokens;
}

class SharedPrefixTest : public ::testing::TestWithParam<Case> {
 protected:
  SharedPrefixTest() {
    testing::TinySpec spec;
    spec.window = GetParam().window, spec.context = 4000, spec.gain = 3;
    testing::write_tiny_gguf(folder_.file("tiny.gguf"), spec);
    engine_ = open(4, GetParam().threads), alone_ = open(1, 1);
  }
  std::unique_ptr<Engine> open(int sessions, int threads) {
    EngineOptions o;
    o.model = folder_.file("tiny.gguf"), o.context = 2600, o.chunk = 256, o.max_sessions = sessions;
    o.threads = threads, o.kv_type = GetParam().kv_type, o.spec.preset = "suffix";
    return Engine::open(o);
  }
  // The session reads on; the reference reads everything.
  void expect_same(Session& session, int tokens, unsigned seed) {
    const auto more = random_tokens(tokens, seed);
    const auto some = session.evaluate(more, 1);
    const std::vector<float> have(some.begin(), some.end());
    const std::vector<Token> text(session.text().begin(), session.text().end());
    const auto reference = alone_->start();
    if (const auto before = std::span(text).first(text.size() - more.size()); !before.empty())
      reference->evaluate(before, 0);
    const auto want = reference->evaluate(more, 1);
    ASSERT_EQ(have.size(), want.size());
    EXPECT_EQ(std::memcmp(have.data(), want.data(), have.size() * sizeof(float)), 0) << seed;
  }

  testing::TempFolder folder_;
  std::unique_ptr<Engine> engine_, alone_;
};

TEST_P(SharedPrefixTest, GoesOnAsIfAlone) {
  std::vector<std::unique_ptr<Session>> sessions;
  for (int i = 0; i < 4; ++i) sessions.push_back(engine_->start());
  Session &a = *sessions[0], &b = *sessions[1], &c = *sessions[2], &d = *sessions[3];
  a.evaluate(random_tokens(2100, 1), 0);
  b.copy_from(a, 2050), c.copy_from(a, 1300);
  EXPECT_GT(kv_memory(*engine_).saved, 0u);
  EXPECT_GT(kv_memory(*engine_).shared, 0u);
  expect_same(b, 30, 2);
  expect_same(c, 40, 3);
  expect_same(a, 20, 4);  // behind what the others share
  a.truncate(1500);       // and in the middle of it
  expect_same(a, 50, 5);
  d.copy_from(b, b.length());  // a copy of a copy
  expect_same(d, 9, 6);
  a.copy_from(c, 1200);  // the first becomes a copy
  expect_same(a, 70, 7);
  b.truncate(70);
  expect_same(b, 200, 8);
  c.truncate(0);
  expect_same(c, 1100, 9);
  expect_same(d, 3, 10);
  sessions.clear();
  const KvMemory left = kv_memory(*engine_);
  EXPECT_EQ(left.shared, 0u);
  EXPECT_EQ(left.saved, 0u);
}

TEST_P(SharedPrefixTest, AnswersInOneBatch) {
  std::vector<std::unique_ptr<Session>> sessions;
  const auto text = random_tokens(1500, 1);
  std::vector<std::vector<Token>> prompts;
  GenerateOptions options;
  options.max_tokens = 24, options.ignore_end = true;
  std::vector<Request> requests;
  for (unsigned i = 0; i < 4; ++i) {
    sessions.push_back(engine_->start());
    if (i == 0) sessions[0]->evaluate(text, 0);
    else sessions[i]->copy_from(*sessions[0], 1500);
    prompts.push_back(text);
    const auto question = random_tokens(20, 30 + i);
    prompts.back().insert(prompts.back().end(), question.begin(), question.end());
  }
  for (size_t i = 0; i < 4; ++i) requests.push_back({sessions[i].get(), prompts[i], &options});
  const auto answers = engine_->generate(requests);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(answers[i].timings.cached_tokens, 1500);
    EXPECT_EQ(answers[i].tokens, alone_->start()->generate(prompts[i], options).tokens) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SharedPrefixTest,
                         ::testing::Values(Case{"bf16", 0, 2}, Case{"q8_0", 0, 3}, Case{"q4_0", 0, 1},
                                           Case{"bf16", 40, 2}, Case{"f32", 0, 2}));

}  // namespace
}  // namespace sx
