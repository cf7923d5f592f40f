// A scheduler on an engine without a model, and what its tests share.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "fake_engine.h"
#include "server/scheduler.h"

namespace sx::server {

inline std::vector<Token> tokens(int first, int count) {
  std::vector<Token> all(size_t(count), 0);
  std::iota(all.begin(), all.end(), first);
  for (Token& t : all) t %= 250;
  return all;
}

struct Bench {
  explicit Bench(int slots, size_t queue = 8, size_t cache = 1 << 20,
                 std::chrono::microseconds turn = std::chrono::milliseconds(4))
      : engine(slots), scheduler(engine, {queue, cache, turn}, metrics) {}
  ~Bench() { engine.steps.release(1 << 20); }

  std::shared_ptr<Job> job(std::vector<Token> prompt, int most, const CompletionRequest& request = {}) {
    const auto made = std::make_shared<Job>(mailbox, request, std::move(prompt), 0);
    made->options.max_tokens = most;
    return made;
  }
  std::shared_ptr<Job> submit(std::vector<Token> prompt, int most, const CompletionRequest& request = {}) {
    const auto made = job(std::move(prompt), most, request);
    scheduler.submit(std::vector{made});
    return made;
  }
  template <typename Condition>
  static void wait(Condition condition) {
    const auto end = Clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      ASSERT_LT(Clock::now(), end);
      std::this_thread::yield();
    }
  }
  static void wait_accepted(const std::shared_ptr<Job>& job) {
    wait([&] { return job->accepted(); });
  }
  GenerateResult result(const std::shared_ptr<Job>& job) {
    engine.steps.release(10000);
    wait([&] { return job->done(); });
    while (engine.steps.try_acquire()) {}
    return job->end().result;
  }
  // What a request of another key is answered.
  GenerateResult result_of(uint64_t scope, std::vector<Token> prompt, int most) {
    const auto made = job(std::move(prompt), most);
    made->scope = scope;
    scheduler.submit(std::vector{made});
    return result(made);
  }
  double counter(const std::string& name) const {
    const std::string page = metrics.text("m", scheduler.gauges()), line = name + "{model_name=\"m\"} ";
    const size_t at = page.find(line);
    EXPECT_NE(at, page.npos) << name;
    return at == page.npos ? -1 : std::stod(page.substr(at + line.size()));
  }
  static std::string code_of(const std::shared_ptr<Job>& job) {
    wait([&] { return job->done(); });
    return job->error() ? job->error()->code : "none";
  }

  testing::FakeEngine engine;
  Metrics metrics;
  std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>();
  Scheduler scheduler;
};

}  // namespace sx::server
