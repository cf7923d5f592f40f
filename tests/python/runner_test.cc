// The thread behind the Python package, without Python: calls from many threads, cancelled calls, sessions that come
// and go, and an end while calls run. It also runs under the sanitizers, which Python cannot be loaded with.
#include "runner.h"

#include <gtest/gtest.h>
#include <poll.h>

#include "support/model_writer.h"

namespace sx::python {
namespace {

using namespace std::chrono_literals;

class RunnerTest : public ::testing::Test {
 protected:
  RunnerTest() {
    testing::TinySpec spec;
    spec.gain = 3;
    testing::write_tiny_gguf(folder_.file("tiny.gguf"), spec);
    EngineOptions o;
    o.model = folder_.file("tiny.gguf"), o.threads = 2, o.context = 300, o.max_sessions = 3, o.device = "cpu";
    o.spec = parse_spec("suffix:cost-model=off");
    runner_ = std::make_unique<Runner>(o);
    prompt_ = runner_->engine().tokenizer().tokenize("A fox, a dog, a fox, a dog,", true);
  }
  static GenerateOptions options(int seed, int tokens = 30) {
    GenerateOptions o;
    o.max_tokens = tokens, o.ignore_end = true, o.sampling.temperature = 1, o.sampling.seed = uint64_t(seed);
    return o;
  }
  std::shared_ptr<Call> start(int seed, int tokens = 30, std::shared_ptr<Place> place = nullptr) {
    auto call = std::make_shared<Call>(prompt_, options(seed, tokens), CallWants{.pieces = true}, std::move(place));
    runner_->submit(call);
    return call;
  }
  // Takes the pieces as they come; returns their text.
  static std::string read(Call& call) {
    std::string text;
    while (true) {
      call.wait(100ms);
      const bool done = call.done();  // before the pieces: none comes later
      for (const CallPiece& piece : call.take()) text += piece.text;
      if (done) return text;
    }
  }
  testing::TempFolder folder_;
  std::unique_ptr<Runner> runner_;
  std::vector<Token> prompt_;
};

TEST_F(RunnerTest, AnswersManyThreadsAsEachAlone) {
  constexpr int kSeeds = 6;
  std::vector<std::string> alone;
  for (int seed = 0; seed < kSeeds; ++seed) {
    const auto call = start(seed);
    alone.push_back(read(*call));
    EXPECT_EQ(alone.back(), call->result().text);
  }
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kSeeds; ++i) {
        const int seed = (i + t) % kSeeds;
        wrong += read(*start(seed)) != alone[size_t(seed)];
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(RunnerTest, FastPiecesComeInGroups) {
  const auto start_time = std::chrono::steady_clock::now();
  const auto call = start(1, 200);
  int groups = 0;
  size_t tokens = 0;
  for (bool done = false; !done;) {
    ASSERT_TRUE(call->wait(10s));
    EXPECT_EQ(call->pause(), 0us);
    done = call->done();
    const auto pieces = call->take();
    EXPECT_TRUE(done || !pieces.empty());
    for (const CallPiece& piece : pieces) tokens += piece.tokens.size();
    groups += !pieces.empty();
    EXPECT_LE(call->pause(), kPause);
  }
  EXPECT_EQ(tokens, 200u);
  const auto elapsed = std::chrono::steady_clock::now() - start_time;
  EXPECT_LE(groups, elapsed / kPause + 2);  // the first and the last one do not wait
  EXPECT_EQ(call->pause(), 0us);
  EXPECT_TRUE(call->wait(0ms));
}

TEST_F(RunnerTest, WaitsEndWithTheNextPieceAndWithTheLast) {
  const auto endless = start(1, 250);
  ASSERT_TRUE(endless->wait(10s));
  const auto taken = std::chrono::steady_clock::now();
  EXPECT_FALSE(endless->take().empty());
  const bool more = endless->wait(1ms);
  EXPECT_TRUE(!more || endless->done() || std::chrono::steady_clock::now() - taken >= kPause);  // they gather
  endless->cancel();
  const auto cancelled = std::chrono::steady_clock::now();
  ASSERT_TRUE(endless->wait_done(10s));
  EXPECT_LT(std::chrono::steady_clock::now() - cancelled, 5s);
  const auto other = start(2, 250);
  const int descriptor = other->descriptor();
  pollfd waiting{descriptor, POLLIN, 0};
  size_t tokens = 0;
  while (true) {
    std::this_thread::sleep_for(other->pause());
    other->arm();
    ASSERT_EQ(::poll(&waiting, 1, 10000), 1);
    other->clear_descriptor();
    const bool done = other->done();
    for (const CallPiece& piece : other->take()) tokens += piece.tokens.size();
    if (done) break;
    EXPECT_TRUE(::poll(&waiting, 1, 0) == 0 || other->done());  // it is not armed: only the end is announced
  }
  EXPECT_EQ(tokens, 250u);
}

TEST_F(RunnerTest, CancelledCallsEndEarlyAndLeaveOthersAlone) {
  const std::string whole = read(*start(1));
  int cancelled = 0;  // the others were done before
  for (int i = 0; i < 20; ++i) {
    const auto gone = start(2, 200), other = start(1);
    if (i % 2) gone->wait(100ms);
    gone->cancel();
    read(*gone);
    const GenerateResult result = gone->result();
    cancelled += result.reason == FinishReason::kCancelled;
    EXPECT_EQ(result.reason == FinishReason::kCancelled, result.tokens.size() < 200);
    EXPECT_EQ(read(*other), whole);
  }
  EXPECT_GT(cancelled, 0);
}

TEST_F(RunnerTest, SessionsEndWhileTheyRun) {
  const std::string whole = read(*start(1));
  for (int i = 0; i < 5; ++i) {
    const auto place = runner_->start();
    const auto call = start(1, 30, place);
    runner_->end(place);  // before or while it runs
    const std::string text = read(*call);
    try {
      call->result();
      EXPECT_EQ(text, whole);
    } catch (const Error& error) { EXPECT_NE(std::string(error.what()).find("closed"), std::string::npos); }
  }
  EXPECT_EQ(read(*start(1)), whole);
}

TEST_F(RunnerTest, NamedSessionsLeaveRoomOrSayThatThereIsNone) {
  read(*start(1));  // a session that serves calls: it makes room
  const auto first = runner_->start(), second = runner_->start(), third = runner_->start();
  EXPECT_THROW(runner_->start(), Error);
  const auto call = start(1);
  read(*call);
  EXPECT_THROW(call->result(), Error);
  EXPECT_EQ(read(*start(1, 30, second)), read(*start(1, 30, third)));
  runner_->end(first);
  const auto fourth = runner_->start();
  EXPECT_NE(fourth->session, nullptr);
}

TEST_F(RunnerTest, WorkRunsAloneBehindWhatRuns) {
  const auto before = start(1), other = start(2);
  while (!before->wait(100ms) || !other->wait(100ms)) {}  // both run
  std::string alone;
  runner_->run_alone([&](Engine&, Session& session) { alone = session.generate(prompt_, options(1)).text; }, {});
  EXPECT_TRUE(before->done() && other->done());
  EXPECT_EQ(alone, read(*before));
  EXPECT_THROW(runner_->run([](Engine&) { throw Error("as it is"); }), Error);
}

TEST_F(RunnerTest, ClosingEndsWhatRunsAndWaits) {
  std::vector<std::shared_ptr<Call>> calls;
  for (int i = 0; i < 300; ++i) calls.push_back(start(i, 200));
  runner_->close();
  runner_->close();
  int ended = 0;  // the others were done before
  for (const auto& call : calls) {
    read(*call);
    try {
      call->result();
    } catch (const Error&) { ++ended; }
  }
  EXPECT_GT(ended, 0);
  EXPECT_THROW(start(1), Error);
  EXPECT_THROW(runner_->start(), Error);
  runner_.reset();  // calls may outlive it
}

}  // namespace
}  // namespace sx::python
