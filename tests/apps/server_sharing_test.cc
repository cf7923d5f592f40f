// The scheduler among strangers: whose texts are shared, who waits for whom, how states move beside steps, and what is
// counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <specextend/no_memory.h>

#include <algorithm>
#include <sstream>
#include <system_error>

#include "scheduler_bench.h"

namespace sx::server {
namespace {

// Whoever guesses another key's prompt must not learn from the tokens found in caches that the guess was right.
TEST(Scheduler, TextsAreSharedWithinAScopeOnly) {
  Bench bench(3);
  const auto cached = [&](uint64_t scope, int first) {
    return bench.result_of(scope, tokens(first, 200), 5).timings.cached_tokens;
  };
  const std::string text = bench.result_of(1, tokens(0, 200), 5).text;
  EXPECT_EQ(cached(2, 0), 0);  // of a session that rests
  EXPECT_EQ(cached(1, 0), 199);
  EXPECT_EQ(cached(2, 0), 199);                     // of its own
  for (int first : {20, 40, 60}) cached(1, first);  // all sessions have been taken
  EXPECT_GE(bench.scheduler.gauges().saved_states, 2u);
  EXPECT_EQ(cached(3, 0), 0);  // of memory
  EXPECT_EQ(cached(1, 0), 199);
  EXPECT_EQ(cached(2, 0), 199);
  EXPECT_EQ(bench.result_of(3, tokens(0, 200), 5).text, text);
}

TEST(Scheduler, ARunningRequestsTextStaysInItsScope) {
  Bench bench(3);
  bench.engine.chunk = 50;
  const auto first = bench.job(tokens(0, 200), 300);
  first->scope = 1;
  bench.scheduler.submit(std::vector{first});
  Bench::wait_accepted(first);
  const auto guess = bench.job(tokens(0, 200), 1), own = bench.job(tokens(0, 200), 1);
  guess->scope = 2, own->scope = 1;
  bench.scheduler.submit(std::vector{guess, own});
  bench.engine.steps.release(1);
  Bench::wait_accepted(guess);  // which does not wait for the first's prompt
  EXPECT_FALSE(own->accepted());
  bench.engine.steps.release(20);
  Bench::wait([&] { return guess->done() && own->done(); });
  EXPECT_FALSE(first->done());
  EXPECT_EQ(guess->end().result.timings.cached_tokens, 0);
  EXPECT_EQ(own->end().result.timings.cached_tokens, 199);
}

TEST(Scheduler, ASlotAskedForShowsNothingOfAnothersText) {
  Bench bench(1);
  const auto ask = [&](uint64_t scope) {
    CompletionRequest request;
    request.slot = 0;
    const auto job = bench.job(tokens(0, 200), 1, request);
    job->scope = scope;
    bench.scheduler.submit(std::vector{job});
    return bench.result(job).timings.cached_tokens;
  };
  ask(1);
  const auto use = [&](uint64_t scope, bool replaces) {
    int held = -1;
    try {
      bench.scheduler.on_slot({0, scope, replaces}, [&](Session& session, Turns&) { held = session.length(); });
    } catch (const ApiError& e) { EXPECT_EQ(e.status, 403); }
    return held;
  };
  EXPECT_EQ(bench.scheduler.slots()[0].scope, 1u);
  EXPECT_EQ(use(2, false), -1);
  EXPECT_EQ(use(1, false), 200);
  EXPECT_EQ(ask(2), 0);
  EXPECT_EQ(use(1, false), -1);
  EXPECT_EQ(use(1, true), 0);  // to put a state there
  EXPECT_EQ(ask(1), 199);      // from memory, as is what was replaced
  EXPECT_EQ(ask(2), 199);
}

// The one that is waited for may fail and leave its slot to a stranger between two looks.
TEST(Scheduler, NobodyWaitsForAStrangersAnswer) {
  Bench bench(3);
  bench.engine.chunk = 20;
  const auto prompt = [](int common, int own) {
    auto all = tokens(0, common);
    for (int i = 0; i < 200 - common; ++i) all.push_back(Token(own));
    return all;
  };
  CompletionRequest bad;
  bad.options.grammar = "bad";
  const auto first = bench.job(prompt(150, 240), 100000), blocker = bench.job(tokens(50, 3), 1);
  bench.scheduler.submit(std::vector{blocker, first});
  Bench::wait_accepted(first);                               // blocker is in slot 0, first in slot 1
  const auto doomed = bench.submit(prompt(200, 0), 5, bad);  // in slot 2, awaits 150 tokens of first
  bench.engine.steps.release(2);
  Bench::wait([&] { return blocker->done(); });
  const auto waiting = bench.submit(prompt(190, 241), 5);       // in slot 0, awaits 190 tokens of doomed
  const auto stranger = bench.submit(tokens(120, 20), 100000);  // in slot 2 as soon as doomed has failed
  bench.engine.steps.release(1);
  Bench::wait([&] { return bench.scheduler.gauges().waiting == 1; });
  bench.engine.steps.release(100);
  Bench::wait([&] { return waiting->done(); });
  EXPECT_EQ(Bench::code_of(doomed), "");
  EXPECT_FALSE(stranger->done());
  EXPECT_TRUE(stranger->accepted());
  EXPECT_EQ(waiting->end().result.tokens.size(), 5u);
  first->gone = stranger->gone = true;
}

// A piece between two steps: whoever runs does not wait for a whole state.
TEST(Scheduler, StatesMoveBetweenSteps) {
  Bench bench(2, 8, 1 << 20, std::chrono::microseconds(0));
  bench.result(bench.submit(tokens(0, 200), 5));
  const auto running = bench.submit(tokens(100, 10), 1 << 30);
  Bench::wait_accepted(running);
  const size_t rests = bench.scheduler.slots()[0].running ? 1 : 0;
  const auto steps_during = [&](auto action) {
    const int before = bench.engine.steps_while_moving;
    std::atomic<bool> done{false};
    std::thread asking([&] { action(), done = true; });
    Bench::wait([&] { return bench.engine.steps.release(1), done.load(); });
    asking.join();
    return bench.engine.steps_while_moving - before;
  };
  std::string state;
  const int saving = steps_during([&] {
    bench.scheduler.on_slot({rests}, [&](Session& session, Turns& turns) {
      StateWriter out(session.save_bytes(), &turns);
      session.save(out.stream());
      state = out.take();
    });
  });
  EXPECT_GE(saving, 100);
  EXPECT_EQ(state.size(), 204 * sizeof(Token));
  const int restoring = steps_during([&] {
    bench.scheduler.on_slot({rests, 0, true}, [&](Session& session, Turns& turns) {
      StateReader in(state, &turns);
      session.restore(in.stream());
    });
  });
  EXPECT_GE(restoring, 100);
  const auto ask = [&](int first) {
    GenerateResult answer;
    const int steps = steps_during([&] {
      const auto job = bench.submit(tokens(first, 200), 5);
      Bench::wait([&] { return job->done(); });
      answer = job->end().result;
    });
    EXPECT_EQ(answer.tokens.size(), 5u);
    EXPECT_EQ(answer.timings.cached_tokens, first == 0 ? 199 : 0);
    return steps;
  };
  EXPECT_GE(ask(30), 100);  // the first text goes to memory
  EXPECT_GE(ask(0), 200);   // and comes back, the other goes
  EXPECT_FALSE(running->done());
  running->gone = true;
}

// What memory has no room for goes to the disk, and comes back from there.
TEST(StateCache, WhatLeavesMemoryGoesToTheDisk) {
  sx::testing::FakeEngine engine(1);
  const auto session = engine.start();
  const auto hold = [&](int first) {
    std::stringstream state;
    const auto text = tokens(first, 100);
    state.write(reinterpret_cast<const char*>(text.data()), std::streamsize(text.size() * sizeof(Token)));
    session->restore(state);
  };
  StateCache cache(250 * sizeof(Token), 350 * sizeof(Token), ::testing::TempDir());
  for (int i = 0; i < 6; ++i) {  // two in memory, three on disk, one nowhere
    hold(i), cache.save(1, *session);
    if (i < 5) cache.disk()->wait();
  }
  EXPECT_EQ(cache.size(), 5u);
  EXPECT_EQ(cache.bytes(), 200 * sizeof(Token));
  EXPECT_EQ(cache.disk_bytes(), 300 * sizeof(Token));
  for (const bool written : {false, true}) {
    if (written) cache.disk()->wait();
    for (int i = 0; i < 6; ++i) {
      session->truncate(0);
      EXPECT_EQ(cache.longest(1, tokens(i, 100)), i == 0 ? 0u : 100u);
      EXPECT_FALSE(cache.restore(2, tokens(i, 100), *session));  // of another scope
      EXPECT_EQ(cache.restore(1, tokens(i, 100), *session), i != 0);
      if (i > 0) { EXPECT_TRUE(std::ranges::equal(session->text(), tokens(i, 100))); }
    }
  }
  // In place of beginnings of the text, also of those on disk.
  std::stringstream longer;
  const auto text = tokens(1, 150);
  longer.write(reinterpret_cast<const char*>(text.data()), std::streamsize(text.size() * sizeof(Token)));
  session->restore(longer);
  cache.save(1, *session);
  EXPECT_EQ(cache.longest(1, text), 150u);
  EXPECT_LE(cache.bytes(), 250 * sizeof(Token));
  EXPECT_LE(cache.disk_bytes(), 350 * sizeof(Token));
  EXPECT_THROW(StateCache(1, 1, ::testing::TempDir() + "/nowhere"), Error);
}

// A device without memory says nothing about the state.
TEST(StateCache, AStateOutlivesFullMemory) {
  class Full final : public sx::testing::FakeSession {
   public:
    using FakeSession::FakeSession;
    void restore(std::istream& from) override {
      if (full) throw NoMemory("full");
      FakeSession::restore(from);
    }
    bool full = true;
  };
  sx::testing::FakeEngine engine(1);
  Full session(engine);
  StateCache cache(250 * sizeof(Token), 350 * sizeof(Token), ::testing::TempDir());
  for (int i = 0; i < 3; ++i)
    session.tokens = tokens(i, 100), cache.save(1, session);  // the first one goes to the disk
  cache.disk()->wait();
  ASSERT_GT(cache.disk_bytes(), 0u);
  for (const bool full : {true, false}) {
    session.full = full;
    for (int i = 0; i < 3; ++i) {
      session.truncate(0);
      EXPECT_EQ(cache.restore(1, tokens(i, 100), session), !full);
      EXPECT_EQ(cache.size(), 3u);
    }
  }
}

// While it lives, no thread can be made: its stack would be larger than any memory.
struct NoThreads {
  NoThreads() {
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_getattr_default_np(&usual);
    pthread_attr_setstacksize(&huge, size_t(1) << 56);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&usual);
    pthread_attr_destroy(&usual);
  }
  pthread_attr_t usual{};
};

TEST(Turns, RunOnTheirOwnersThreadWhereNoneCanBeMade) {
  const NoThreads none;
  ASSERT_THROW(std::thread([] {}), std::system_error);
  std::thread::id ran{};
  Turns whole([&](Turns& turns) {
    for (int i = 0; i < 3; ++i) turns.pause();
    ran = std::this_thread::get_id();
  });
  EXPECT_TRUE(whole.go_on(std::chrono::microseconds(0)));
  EXPECT_EQ(ran, std::this_thread::get_id());
  EXPECT_TRUE(whole.go_on(std::chrono::microseconds(0)));  // it has ended, and runs no second time
  EXPECT_EQ(whole.failure(), nullptr);
  Turns fails([](Turns&) { throw Error("no"); });
  EXPECT_TRUE(fails.go_on(std::chrono::microseconds(0)));
  EXPECT_THROW(std::rethrow_exception(fails.failure()), Error);
}

TEST(Scheduler, StatesMoveWithoutThreadsToMoveThem) {
  Bench bench(1);
  const std::string text = bench.result(bench.submit(tokens(0, 200), 5)).text;
  const NoThreads none;
  EXPECT_EQ(bench.result(bench.submit(tokens(30, 200), 5)).timings.cached_tokens, 0);
  EXPECT_EQ(bench.scheduler.gauges().saved_states, 1u);
  const GenerateResult again = bench.result(bench.submit(tokens(0, 200), 5));
  EXPECT_EQ(again.timings.cached_tokens, 199);
  EXPECT_EQ(again.text, text);
}

TEST(Scheduler, StoppingEndsWhatMoves) {
  Bench bench(2, 8, 1 << 20, std::chrono::microseconds(0));
  bench.result(bench.submit(tokens(0, 200), 5));
  const auto running = bench.submit(tokens(100, 10), 1 << 30), next = bench.submit(tokens(30, 200), 5);
  Bench::wait([&] { return bench.engine.steps.release(1), bench.engine.steps_while_moving > 0; });
  bench.engine.steps.release(1);
  bench.scheduler.stop();
  EXPECT_EQ(Bench::code_of(running), "shutting_down");
  EXPECT_THAT(Bench::code_of(next), ::testing::AnyOf("shutting_down", "none"));  // it may have been quicker
}

TEST(Scheduler, AFailedStepDoesNotLoseRequestsWhoseStatesMove) {
  Bench bench(2, 8, 1 << 20, std::chrono::microseconds(0));
  bench.result(bench.submit(tokens(0, 200), 5));
  const auto running = bench.submit(tokens(100, 10), 1 << 30);
  Bench::wait_accepted(running);
  const auto next = bench.submit(tokens(30, 200), 5);
  Bench::wait([&] { return bench.engine.steps.release(1), bench.engine.steps_while_moving > 0; });
  bench.engine.fail_step = true;
  EXPECT_EQ(bench.result(next).tokens.size(), 5u);
  EXPECT_EQ(Bench::code_of(running), "internal_error");
}

TEST(Scheduler, CountersMoveWithTheWork) {
  Bench bench(1);
  bench.engine.chunk = 50;
  const auto job = bench.submit(tokens(0, 200), 1000);
  Bench::wait_accepted(job);
  bench.engine.steps.release(2);
  Bench::wait([&] { return bench.counter("vllm:prompt_tokens_total") == 100; });
  EXPECT_EQ(bench.counter("vllm:generation_tokens_total"), 0);
  bench.engine.steps.release(12);
  Bench::wait([&] { return bench.counter("vllm:generation_tokens_total") == 10; });
  EXPECT_EQ(bench.counter("vllm:prompt_tokens_total"), 199);
  job->gone = true;
  bench.engine.steps.release(1);
  EXPECT_EQ(Bench::code_of(job), "timeout");
  EXPECT_EQ(bench.counter("vllm:generation_tokens_total"), 10);  // of a request that was cancelled
  EXPECT_EQ(bench.result(bench.submit(tokens(0, 200), 7)).timings.cached_tokens, 199);
  EXPECT_EQ(bench.counter("vllm:generation_tokens_total"), 17);
  EXPECT_EQ(bench.counter("vllm:prompt_tokens_total"), 398);
  EXPECT_EQ(bench.counter("vllm:prompt_tokens_cached_total"), 199);
}

// What vLLM tells of each request that ran to its end.
TEST(Metrics, SizesAndPhasesOfRequests) {
  Metrics metrics;
  GenerateResult result;
  result.timings = {.prompt_tokens = 30, .cached_tokens = 10, .generated_tokens = 7};
  metrics.add_progress({}, result.timings);
  metrics.count_step();
  metrics.add(result, {.queued = 1, .first_token = 3, .whole = 8}, {.choices = 2, .max_tokens = 16});
  metrics.add(GenerateResult(), {.queued = 1, .first_token = 0, .whole = 2});  // it gave no token, and had no bound
  metrics.count_response(429);
  const std::string page = metrics.text("m", {.waiting = 3, .cells = 400, .sessions = 4});
  for (const char* line :
       {"request_prompt_tokens_sum{model_name=\"m\"} 40\n", "request_generation_tokens_sum{model_name=\"m\"} 7\n",
        "request_inference_time_seconds_sum{model_name=\"m\"} 8\n",
        "request_prefill_time_seconds_sum{model_name=\"m\"} 3\n",
        "request_decode_time_seconds_sum{model_name=\"m\"} 5\n", "request_params_n_sum{model_name=\"m\"} 3\n",
        "request_params_max_tokens_count{model_name=\"m\"} 1\n",
        "request_params_max_tokens_bucket{model_name=\"m\",le=\"20\"} 1\n",
        "request_params_max_tokens_bucket{model_name=\"m\",le=\"10\"} 0\n",
        "iteration_tokens_total_sum{model_name=\"m\"} 47\n", "num_preemptions_total{model_name=\"m\"} 0\n",
        "request_num_preemptions_count{model_name=\"m\"} 2\n", "admission_rejections_total{model_name=\"m\"} 1\n",
        "num_requests_waiting_by_reason{model_name=\"m\",reason=\"capacity\"} 3\n",
        "kv_cache_size_tokens=\"400\",kv_cache_max_concurrency=\"4\"} 1\n"})
    EXPECT_NE(page.find(line), page.npos) << line << page;
}

// A text at rest gives way to whoever needs its cells: routers look at what is taken.
TEST(Scheduler, CellsOfTextsAtRestAreNotInUse) {
  Bench bench(2);
  bench.result(bench.submit(tokens(0, 200), 5));
  EXPECT_GT(bench.scheduler.slots()[0].held + bench.scheduler.slots()[1].held, 200);
  EXPECT_EQ(bench.scheduler.gauges().cache_share, 0);
  const auto running = bench.submit(tokens(0, 300), 1 << 20);
  Bench::wait_accepted(running);
  Bench::wait([&] {
    bench.engine.steps.release(1);
    return bench.scheduler.gauges().cache_share > 0;
  });
  running->gone = true;
  Bench::wait([&] {
    bench.engine.steps.release(1);
    return running->done();
  });
  Bench::wait([&] { return bench.scheduler.gauges().cache_share == 0; });
}

// A tree of depth 2 with three nodes, of which a path of one was accepted.
TEST(Metrics, DraftsCountByRound) {
  Metrics metrics;
  const std::vector<int32_t> parents{-1, 0, 1, 0};
  RoundInfo round;
  round.drafted = round.verified = 3, round.accepted = 1, round.parents = parents;
  metrics.add_round(round, 10, 0);
  round = {};
  const std::vector<int32_t> alone{-1};
  round.parents = alone;
  metrics.add_round(round, 10, 0);
  const std::string page = metrics.text("m", {});
  for (const char* line :
       {"num_drafts_total{model_name=\"m\"} 1\n", "num_draft_tokens_total{model_name=\"m\"} 2\n",
        "num_accepted_tokens_total{model_name=\"m\"} 1\n", "per_pos_total{model_name=\"m\",position=\"0\"} 1\n",
        "per_pos_total{model_name=\"m\",position=\"1\"} 0\n"})
    EXPECT_NE(page.find(std::string("vllm:spec_decode_") + (line[0] == 'p' ? "num_accepted_tokens_" : "") + line),
              page.npos)
        << line << page;
}

}  // namespace
}  // namespace sx::server
