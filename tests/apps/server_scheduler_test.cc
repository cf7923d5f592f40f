// The scheduler on an engine without a model: who runs when and where, what is shared, and how things end.
#include "server/scheduler.h"

#include <gtest/gtest.h>

#include <thread>

#include "scheduler_bench.h"

namespace sx::server {
namespace {

using testing::FakeEngine;

TEST(Scheduler, RequestsComeAndGoBetweenSteps) {
  Bench bench(2);
  const auto long_one = bench.job(tokens(0, 10), 500), first = bench.job(tokens(100, 10), 3);
  bench.scheduler.submit(std::vector{long_one, first});  // together: both are in the first step
  Bench::wait_accepted(first);
  const auto second = bench.submit(tokens(50, 10), 3);
  bench.engine.steps.release(4);  // a prompt and three tokens
  Bench::wait([&] { return first->done(); });
  Bench::wait_accepted(second);  // as the first has ended
  bench.engine.steps.release(4);
  Bench::wait([&] { return second->done(); });
  EXPECT_FALSE(long_one->done());
  EXPECT_EQ(second->end().result.tokens.size(), 3u);
  EXPECT_EQ(bench.result(long_one).tokens.size(), 500u);
}

TEST(Scheduler, CompanyChangesNothing) {
  std::vector<std::string> alone;
  for (int i = 0; i < 6; ++i) {
    Bench bench(1);
    alone.push_back(bench.result(bench.submit(tokens(i % 3, 40 + i), 20 + i)).text);
  }
  Bench bench(3);
  std::vector<std::shared_ptr<Job>> jobs;
  for (int i = 0; i < 6; ++i) jobs.push_back(bench.submit(tokens(i % 3, 40 + i), 20 + i));
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(bench.result(jobs[i]).text, alone[i]);
}

TEST(Scheduler, ARunningRequestsTextIsShared) {
  Bench bench(2);
  const auto first = bench.submit(tokens(0, 200), 300);
  Bench::wait_accepted(first);
  bench.engine.steps.release(3);
  Bench::wait([&] { return bench.scheduler.slots()[0].held >= 200 || bench.scheduler.slots()[1].held >= 200; });
  const auto second = bench.submit(tokens(0, 200), 1);
  bench.engine.steps.release(2);
  Bench::wait([&] { return second->done(); });
  EXPECT_FALSE(first->done());
  EXPECT_EQ(second->end().result.timings.cached_tokens, 199);
  EXPECT_EQ(bench.engine.prompt_tokens, 199);
}

// Text is told together with its round: whoever looks in between sees neither.
TEST(Job, TextComesWithItsRound) {
  FakeEngine engine(1);
  const auto session = engine.start();
  for (const bool details : {false, true}) {
    CompletionRequest request;
    request.stream = true, request.spec_details = details, request.timings_per_token = !details;
    Job job(std::make_shared<Mailbox>(), request, tokens(0, 10), 0);
    job.begin(engine.tokenizer(), *session, 0);
    RoundInfo round;
    for (int i = 1; i < 4; ++i) {
      job.options.on_token({Token('a'), 0, {}});
      job.options.on_text("a");
      EXPECT_FALSE(job.take().any());
      round.timings.generated_tokens = i;
      job.options.on_round(round);
      const ChoiceDelta delta = job.take();
      EXPECT_EQ(delta.piece.text, "a");
      EXPECT_EQ(delta.rounds.rounds.size(), details ? 1u : 0u);
      ASSERT_EQ(delta.times.has_value(), !details);
      if (!details) { EXPECT_EQ(delta.times->timings.generated_tokens, i); }
    }
    job.options.on_text("z");  // what was held back comes with the end
    job.finish({});
    EXPECT_EQ(job.take().piece.text, "z");
  }
}

// What is told of a prompt once for all choices comes of the first; the others may share what it has.
TEST(Job, OneChoiceScoresThePrompt) {
  CompletionRequest request;
  request.prompt_logprobs = 3, request.n = 2;
  const Job first(std::make_shared<Mailbox>(), request, tokens(0, 10), 0);
  const Job second(std::make_shared<Mailbox>(), request, tokens(0, 10), 1);
  EXPECT_TRUE(first.scores_prompt && !first.reuse && first.logprobs == 3);
  EXPECT_TRUE(!second.scores_prompt && second.reuse && second.logprobs == -1);
}

TEST(Scheduler, AScoredPromptIsRunWhole) {
  Bench bench(2);
  bench.engine.chunk = 30;
  CompletionRequest scored;
  scored.echo = true, scored.logprobs = 0;
  bench.result(bench.submit(tokens(0, 100), 3));
  for (const bool stream : {false, true}) {
    scored.stream = stream;
    const auto job = bench.submit(tokens(0, 100), 3, scored);
    bench.engine.steps.release(10000);
    Bench::wait([&] { return job->done(); });
    while (bench.engine.steps.try_acquire()) {}
    const ChoiceDelta delta = job->take();
    const ChoiceEnd end = job->end();
    EXPECT_EQ(end.result.timings.cached_tokens, 0);
    const std::vector<AnswerToken>& prompt = stream ? delta.prompt : end.prompt;
    ASSERT_EQ(prompt.size(), 100u);
    for (size_t i = 0; i < prompt.size(); ++i) {
      EXPECT_EQ(prompt[i].token, Token(i));
      EXPECT_EQ(prompt[i].logprob.known, i > 0);
    }
    EXPECT_EQ((stream ? delta.piece : end.rest).tokens.size(), 3u);
  }
  EXPECT_EQ(bench.engine.prompt_tokens, 3 * 99);
  EXPECT_EQ(bench.result(bench.submit(tokens(0, 100), 3)).timings.cached_tokens, 99);  // its cells serve others
}

TEST(Scheduler, APromptOfSeveralIsRunOnce) {
  Bench bench(4);
  bench.engine.chunk = 50;
  std::vector<std::shared_ptr<Job>> jobs;
  for (int i = 0; i < 3; ++i) jobs.push_back(bench.job(tokens(0, 200), 5));
  jobs.push_back(bench.job(
      [] {
        auto other = tokens(0, 150);
        other.push_back(249);
        return other;
      }(),
      5));
  bench.scheduler.submit(jobs);
  for (const auto& job : jobs) bench.result(job);
  EXPECT_EQ(bench.engine.prompt_tokens, 199);  // the fourth's 150 tokens are the beginning of them
}

TEST(Scheduler, WhoeverAwaitsAPromptGoesOnWhenItIsGivenUp) {
  Bench bench(2);
  bench.engine.chunk = 50;
  const std::vector jobs{bench.job(tokens(0, 200), 5), bench.job(tokens(0, 200), 5)};
  bench.scheduler.submit(jobs);
  Bench::wait_accepted(jobs[0]);
  bench.engine.steps.release(1);
  jobs[0]->gone = true;
  EXPECT_EQ(bench.result(jobs[1]).tokens.size(), 5u);
  EXPECT_EQ(bench.engine.prompt_tokens, 199);  // 50 of the first are kept
}

TEST(Scheduler, TextsThatLostTheirSessionAreKeptInMemory) {
  for (size_t bytes : {size_t(1) << 20, size_t(0)}) {
    Bench bench(1, 8, bytes);
    const std::string text = bench.result(bench.submit(tokens(0, 200), 5)).text;
    bench.result(bench.submit(tokens(100, 200), 5));
    const GenerateResult again = bench.result(bench.submit(tokens(0, 200), 5));
    EXPECT_EQ(again.text, text);
    EXPECT_EQ(again.timings.cached_tokens, bytes ? 199 : 0);
    EXPECT_EQ(bench.scheduler.gauges().saved_states, bytes ? 2u : 0u);
  }
}

TEST(Scheduler, MemoryForTextsIsBounded) {
  const size_t bytes = 3 * 210 * sizeof(Token);
  Bench bench(1, 8, bytes);
  for (int i = 0; i < 10; ++i) {
    bench.result(bench.submit(tokens(i, 200), 5));
    EXPECT_LE(bench.scheduler.gauges().saved_bytes, bytes);
  }
  EXPECT_EQ(bench.scheduler.gauges().saved_states, 3u);
  EXPECT_EQ(bench.result(bench.submit(tokens(8, 200), 5)).timings.cached_tokens, 199);
  EXPECT_EQ(bench.result(bench.submit(tokens(0, 200), 5)).timings.cached_tokens, 0);  // went first
}

TEST(Scheduler, AConversationStaysInItsSlotAndOthersAreSpared) {
  Bench bench(2, 8, 0);
  bench.result(bench.submit(tokens(0, 300), 5));
  const GenerateResult other =
      bench.result(bench.submit(tokens(0, 20), 5));  // shares little: takes the other slot, with a copy
  EXPECT_EQ(other.timings.cached_tokens, 19);
  const GenerateResult next = bench.result(bench.submit(tokens(0, 310), 5));
  EXPECT_EQ(next.timings.cached_tokens, 300);
}

TEST(Scheduler, WithoutReuseThePromptIsRun) {
  Bench bench(1);
  bench.result(bench.submit(tokens(0, 100), 5));
  CompletionRequest request;
  request.cache_prompt = false;
  EXPECT_EQ(bench.result(bench.submit(tokens(0, 100), 5, request)).timings.cached_tokens, 0);
}

TEST(Scheduler, ASlotCanBeAskedFor) {
  Bench bench(3);
  CompletionRequest request;
  request.slot = 2;
  const auto job = bench.submit(tokens(0, 10), 5, request);
  bench.engine.steps.release(100);
  Bench::wait([&] { return job->done(); });
  EXPECT_EQ(job->end().slot, 2);
}

TEST(Scheduler, ABadRequestFailsAlone) {
  Bench bench(2);
  const auto good = bench.submit(tokens(0, 10), 50);
  CompletionRequest request;
  request.options.grammar = "bad";
  const auto bad = bench.submit(tokens(0, 10), 5, request);
  bench.engine.steps.release(1);
  Bench::wait([&] { return bad->done(); });
  EXPECT_EQ(bad->error()->status, 400);
  request.options.grammar = "ambiguous";  // known only in the middle
  const auto late = bench.submit(tokens(0, 10), 5, request);
  bench.engine.steps.release(2);
  Bench::wait([&] { return late->done(); });
  EXPECT_EQ(late->error()->status, 400);
  EXPECT_EQ(late->error()->what(), std::string("too ambiguous"));
  request.options.grammar = "broken";  // not the client's doing
  const auto broken = bench.submit(tokens(0, 10), 5, request);
  bench.engine.steps.release(2);
  Bench::wait([&] { return broken->done(); });
  EXPECT_EQ(broken->error()->status, 500);
  EXPECT_EQ(broken->error()->what(), std::string("logits are NaN"));
  EXPECT_EQ(bench.result(good).tokens.size(), 50u);
}

TEST(Scheduler, AFailedStepFailsWhatRunsAndTheWorkGoesOn) {
  Bench bench(2);
  const auto first = bench.job(tokens(0, 10), 50), second = bench.job(tokens(20, 10), 50);
  bench.scheduler.submit(std::vector{first, second});
  Bench::wait_accepted(second);
  const auto third = bench.submit(tokens(40, 10), 5);
  bench.engine.fail_step = true;
  bench.engine.steps.release(1);
  for (const auto& job : {first, second}) {
    EXPECT_EQ(Bench::code_of(job), "internal_error");
    EXPECT_LE(bench.scheduler.gauges().running, 1u);  // the third may have begun
    EXPECT_EQ(job->error()->status, 500);
    EXPECT_NE(std::string(job->error()->what()).find("caught fire"), std::string::npos);
  }
  EXPECT_EQ(bench.result(third).tokens.size(), 5u);
  EXPECT_EQ(bench.engine.opened, 4);  // sessions of their own
  EXPECT_EQ(bench.engine.open, 2);
}

TEST(Scheduler, AnEngineThatCannotGoOnRefuses) {
  Bench bench(1);
  const auto job = bench.submit(tokens(0, 10), 50), queued = bench.submit(tokens(0, 10), 50);
  Bench::wait_accepted(job);
  bench.engine.fail_start = bench.engine.fail_step = true;
  bench.engine.steps.release(1);
  EXPECT_EQ(Bench::code_of(job), "internal_error");
  EXPECT_EQ(Bench::code_of(queued), "internal_error");
  EXPECT_TRUE(bench.scheduler.failed());
  EXPECT_THROW(bench.submit(tokens(0, 10), 50), ApiError);
  EXPECT_THROW(bench.scheduler.on_slot({0}, [](Session&, Turns&) {}), ApiError);
}

TEST(Scheduler, TheQueueIsBounded) {
  Bench bench(1, 2);
  const auto running = bench.submit(tokens(0, 10), 500);
  const auto waiting = bench.submit(tokens(0, 10), 5);
  const auto refused = [&](size_t count) {
    std::vector<std::shared_ptr<Job>> jobs;
    for (size_t i = 0; i < count; ++i) jobs.push_back(bench.job(tokens(0, 10), 5));
    try {
      bench.scheduler.submit(jobs);
    } catch (const ApiError& e) {
      EXPECT_EQ(e.status, 429);
      EXPECT_GE(bench.scheduler.retry_after(), 1);
      return true;
    }
    return false;
  };
  Bench::wait_accepted(running);
  EXPECT_TRUE(refused(2));  // all or none
  EXPECT_EQ(bench.scheduler.gauges().waiting, 1u);
  EXPECT_FALSE(refused(1));
  EXPECT_TRUE(refused(1));
  waiting->gone = true;  // its place is free again
  EXPECT_FALSE(refused(1));
}

TEST(Scheduler, CancelledInEveryPhase) {
  Bench bench(1);
  bench.engine.chunk = 1;
  const auto running = bench.submit(tokens(0, 100), 50), queued = bench.submit(tokens(0, 100), 50);
  Bench::wait_accepted(running);
  queued->gone = true;
  bench.engine.steps.release(3);
  Bench::wait([&] { return queued->done(); });
  EXPECT_FALSE(running->done());
  running->gone = true;  // in its prompt
  bench.engine.steps.release(2);
  Bench::wait([&] { return running->done(); });
  EXPECT_LT(bench.engine.prompt_tokens, 99);
  const auto decoding = bench.submit(tokens(0, 5), 500);
  Bench::wait_accepted(decoding);
  bench.engine.steps.release(10);
  Bench::wait([&] { return !decoding->take().piece.text.empty(); });
  decoding->gone = true;
  bench.engine.steps.release(10);
  Bench::wait([&] { return decoding->done(); });
  const std::string page = bench.metrics.text("m", bench.scheduler.gauges());
  EXPECT_NE(page.find("specextend_requests_cancelled_total{model_name=\"m\"} 3"), std::string::npos) << page;
}

TEST(Scheduler, TooLateInTheQueueOrRunning) {
  Bench bench(1);
  const auto running = bench.job(tokens(0, 10), 1 << 30), queued = bench.job(tokens(0, 10), 500);
  queued->deadline = Clock::now();
  running->deadline = Clock::now() + std::chrono::milliseconds(50);
  bench.scheduler.submit(std::vector{running});
  bench.scheduler.submit(std::vector{queued});
  const auto step = [&] { return bench.engine.steps.release(1), true; };
  Bench::wait([&] { return step() && running->done() && queued->done(); });
  EXPECT_EQ(Bench::code_of(running), "timeout");
  EXPECT_EQ(running->error()->status, 503);
  EXPECT_EQ(Bench::code_of(queued), "timeout");
}

TEST(Scheduler, ActionsOnSlots) {
  Bench bench(1);
  bench.result(bench.submit(tokens(0, 100), 5));
  int held = 0;
  bench.scheduler.on_slot({0}, [&](Session& session, Turns&) { held = session.length(), session.truncate(0); });
  EXPECT_EQ(held, 104);
  EXPECT_THROW(bench.scheduler.on_slot({0}, [&](Session&, Turns&) { throw bad_request("no"); }), ApiError);
  const auto running = bench.submit(tokens(0, 100), 1 << 30);
  Bench::wait_accepted(running);
  std::atomic<bool> answered{false};
  std::thread asking([&] {
    try {
      bench.scheduler.on_slot({0}, [&](Session&, Turns&) { ADD_FAILURE(); });
      ADD_FAILURE();
    } catch (const ApiError& e) { EXPECT_EQ(e.status, 409); }
    answered = true;
  });
  Bench::wait([&] { return bench.engine.steps.release(1), answered.load(); });
  asking.join();
  running->gone = true;
}

TEST(Scheduler, StoppingEndsEverything) {
  Bench bench(1);
  const auto running = bench.submit(tokens(0, 100), 500), queued = bench.submit(tokens(0, 100), 500);
  Bench::wait_accepted(running);
  bench.engine.steps.release(1000);
  bench.scheduler.stop();
  for (const auto& job : {running, queued})
    if (!job->error()) EXPECT_EQ(job->end().result.tokens.size(), 500u);  // it was quicker
    else EXPECT_EQ(job->error()->code, "shutting_down");
  EXPECT_THROW(bench.submit(tokens(0, 10), 5), ApiError);
}

}  // namespace
}  // namespace sx::server
