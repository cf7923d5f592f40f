// API keys, and what several of them get of one server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "scheduler_bench.h"
#include "server/keys.h"
#include "server/tenants.h"

namespace sx::server {
namespace {

using ::testing::HasSubstr;

std::vector<ApiKey> ring(std::initializer_list<const char*> texts) {
  std::vector<ApiKey> keys;
  for (const char* text : texts) keys.push_back({.name = std::string("name of ") + text, .key = text});
  return keys;
}

TEST(Keys, CompareWholeTexts) {
  EXPECT_TRUE(equal_in_constant_time("secret", "secret"));
  for (const char* given : {"", "s", "secre", "secreT", "secrets", "secretsecret"})
    EXPECT_FALSE(equal_in_constant_time(given, "secret")) << given;
  EXPECT_TRUE(KeyRing().find("", "").has_value());
  const KeyRing keys(ring({"one", "two"}));
  EXPECT_TRUE(keys.find("Bearer one", "") && keys.find("Bearer two", "") && keys.find("", "two"));
  EXPECT_FALSE(keys.find("", "") || keys.find("one", "") || keys.find("Bearer ", "") || keys.find("bearer one", ""));
}

TEST(Keys, ScopesFollowTheKeyAndNothingElse) {
  const KeyRing keys(ring({"alpha", "beta"})), others(ring({"gamma", "beta"}));
  const uint64_t alpha = keys.find("Bearer alpha", "")->id, beta = keys.find("Bearer beta", "")->id;
  EXPECT_NE(alpha, beta);
  EXPECT_NE(alpha, 0u);
  EXPECT_EQ(keys.find("", "alpha")->id, alpha);
  EXPECT_EQ(others.find("Bearer beta", "")->id, beta);  // of another process, with other keys
  EXPECT_EQ(KeyRing().find("Bearer alpha", "")->id, 0u);
  EXPECT_TRUE(KeyRing(ring({"alpha"})).find("Bearer alpha", "")->alone);
  EXPECT_TRUE(KeyRing(ring({"alpha", "alpha"})).find("Bearer alpha", "")->alone);  // of a flag and of a file
  EXPECT_FALSE(keys.find("Bearer alpha", "")->alone);
}

// From what all do together, one of two keys could work out what the other does.
TEST(Keys, OfSeveralOnlyAdminsSeeAll) {
  EXPECT_TRUE(KeyRing().find("", "")->sees_all);
  EXPECT_TRUE(KeyRing(ring({"alpha"})).find("Bearer alpha", "")->sees_all);
  auto keys = ring({"alpha", "beta"});
  EXPECT_FALSE(KeyRing(keys).find("Bearer alpha", "")->sees_all);
  keys[0].admin = true;
  EXPECT_TRUE(KeyRing(keys).find("Bearer alpha", "")->sees_all);
  EXPECT_FALSE(KeyRing(keys).find("Bearer beta", "")->sees_all);
}

TEST(Keys, AreReplacedWhileTheyAreUsed) {
  KeyRing keys(ring({"one", "two"}));
  keys.replace(ring({"two", "three"}));
  EXPECT_FALSE(keys.find("Bearer one", ""));
  EXPECT_EQ(keys.find("Bearer three", "")->name, "name of three");
}

class KeyFile : public ::testing::Test {
 protected:
  static std::vector<ApiKey> read(const std::string& content) {
    const std::string path = ::testing::TempDir() + "/keys-" + std::to_string(getpid()) + ".json";
    std::ofstream(path) << content;
    return read_keys(path);
  }
  static std::string refusal(const std::string& content) {
    try {
      read(content);
    } catch (const Error& e) { return e.what(); }
    return "none";
  }
};

TEST_F(KeyFile, HasLinesOrNamesAndLimits) {
  EXPECT_EQ(read("# two\none\n\ntwo\r\n").size(), 2u);
  const auto keys = read(R"( [{"name": "a", "key": "k", "weight": 2.5, "max_running": 3, "max_waiting": 4,
    "tokens_per_minute": 1000, "admin": true}, {"name": "b", "key": "l"}])");
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].name + keys[0].key + keys[1].name + keys[1].key, "akbl");
  EXPECT_EQ(keys[0].limits.weight, 2.5);
  EXPECT_EQ(keys[0].limits.max_running, 3);
  EXPECT_EQ(keys[0].limits.max_waiting, 4);
  EXPECT_EQ(keys[0].limits.tokens_per_minute, 1000);
  EXPECT_TRUE(keys[0].admin && !keys[1].admin);
  const KeyRing all(keys);
  EXPECT_TRUE(all.find("Bearer k", "")->sees_all);
  EXPECT_FALSE(all.find("Bearer l", "")->sees_all);
}

TEST_F(KeyFile, ErrorsNameTheEntryButNoKey) {
  const std::string good = R"({"name": "a", "key": "hush"})";
  for (const auto& [content, word] : std::vector<std::pair<std::string, std::string>>{
           {"[" + good + R"(, {"name": "a", "key": "x"}])", "entry 1: its name"},
           {"[" + good + R"(, {"name": "b", "key": "hush"}])", "entry 1: its key"},
           {R"([{"name": "a"}])", "'name' and 'key'"},
           {R"([{"name": "a", "key": "hush", "wait": 1}])", "'wait'"},
           {R"([{"name": "a", "key": "hush", "weight": 0}])", "'weight'"},
           {R"([{"name": "a", "key": "hush", "max_running": -1}])", "'max_running'"},
           {R"([{"name": "a", "key": "hush", "tokens_per_minute": 1.5}])", "'tokens_per_minute'"},
           {R"([{"name": "a", "key": "hush", "admin": 1}])", "'admin'"},
           {"[" + good, "no JSON list"},
           {R"({"name": "a", "key": "hush"})", "no JSON list"},
           {"[1]", "an object"},
           {"[]", "no key"}}) {
    EXPECT_THAT(refusal(content), HasSubstr(word)) << content;
    EXPECT_THAT(refusal(content), ::testing::Not(HasSubstr("hush")));
  }
}

Tenant tenant(uint64_t id, KeyLimits limits = {}) {
  return {.id = id, .name = "t" + std::to_string(id), .limits = limits, .sees_all = true, .alone = false};
}

std::shared_ptr<Job> ask(Bench& bench, const Tenant& who, int first, int most = 1) {
  const auto job = bench.job(tokens(first, 20), most);
  job->scope = who.id, job->tenant = who;
  bench.scheduler.submit(std::vector{job});
  return job;
}

std::string refused(Bench& bench, const Tenant& who, int* retry_after = nullptr) {
  try {
    ask(bench, who, 0);
  } catch (const ApiError& error) {
    if (retry_after) *retry_after = error.retry_after;
    EXPECT_EQ(error.status, 429);
    EXPECT_THAT(error.message, HasSubstr(who.name));
    return error.code;
  }
  return "none";
}

TEST(Tenants, OneKeysBurstDoesNotStarveAnother) {
  Bench bench(1, 20);
  const auto running = ask(bench, tenant(1), 0, 50);
  Bench::wait_accepted(running);
  std::vector<std::shared_ptr<Job>> burst;
  for (int i = 1; i < 10; ++i) burst.push_back(ask(bench, tenant(1), i));
  const auto other = ask(bench, tenant(2), 100), another = ask(bench, tenant(2), 120);
  bench.engine.steps.release(55);
  Bench::wait([&] { return other->done(); });
  EXPECT_TRUE(running->done());
  EXPECT_FALSE(burst[1]->done());  // they came first, but their key has had more
  bench.engine.steps.release(1000);
  Bench::wait([&] { return another->done() && burst.back()->done(); });
}

TEST(Tenants, PlacesAreLeftForOthers) {
  Bench bench(1, 20);
  Bench::wait_accepted(ask(bench, tenant(1), 0, 50));
  int waiting = 0;
  while (refused(bench, tenant(1)) == "none") ASSERT_LT(++waiting, 20);
  EXPECT_GE(waiting, 9);
  EXPECT_EQ(refused(bench, tenant(1)), "key_queue_full");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(refused(bench, tenant(2)), "none") << i;
  EXPECT_EQ(refused(bench, tenant(3)), "none");
  EXPECT_EQ(bench.metrics.text_of_key("m", "t2").find("t1"), std::string::npos);
  EXPECT_THAT(bench.metrics.text_of_key("m", "t1"), HasSubstr("api_key=\"t1\"} 2"));
}

// As many jobs of one request.
std::string refused_together(Bench& bench, const Tenant& who, int count) {
  std::vector<std::shared_ptr<Job>> jobs;
  for (int i = 0; i < count; ++i) {
    jobs.push_back(bench.job(tokens(i, 20), 50));
    jobs.back()->scope = who.id, jobs.back()->tenant = who;
  }
  try {
    bench.scheduler.submit(jobs);
  } catch (const ApiError& error) { return error.code; }
  return "none";
}

TEST(Tenants, OneRequestLeavesPlacesForOthers) {
  Bench bench(4, 32);
  EXPECT_EQ(refused_together(bench, tenant(1), 36), "key_queue_full");
  EXPECT_EQ(refused_together(bench, tenant(1), 19), "key_queue_full");
  EXPECT_EQ(refused_together(bench, tenant(1), 18), "none");
  EXPECT_EQ(refused(bench, tenant(2)), "none");
  Bench narrow(1, 1);
  Bench::wait_accepted(ask(narrow, tenant(1), 0, 50));
  EXPECT_EQ(refused(narrow, tenant(2)), "none");  // the only place is anybody's
  EXPECT_EQ(refused_together(narrow, tenant(3), 1), "queue_full");
}

// What is refused anyway is refused before its grammar is compiled.
TEST(Tenants, AreCheckedBeforeAnythingIsDone) {
  Bench bench(1, 20);
  const Tenant few = tenant(1, {.max_waiting = 2});
  EXPECT_NO_THROW(bench.scheduler.check(few, 2));
  EXPECT_THROW(bench.scheduler.check(few, 3), ApiError);
  EXPECT_NO_THROW(bench.scheduler.check(few, 2));  // which has put nothing into the queue
  Bench::wait_accepted(ask(bench, few, 0, 50));
  ask(bench, few, 40, 50), ask(bench, few, 80, 50);
  EXPECT_THROW(bench.scheduler.check(few, 1), ApiError);
  EXPECT_THAT(bench.metrics.text_of_key("m", "t1"), HasSubstr("specextend_key_rejected_total{model_name=\"m\","
                                                              "api_key=\"t1\"} 2"));
  bench.engine.steps.release(1000);
  bench.scheduler.stop();
  EXPECT_THROW(bench.scheduler.check(tenant(2), 1), ApiError);
}

TEST(Tenants, LeaveASlotToOthers) {
  Bench bench(3, 20);
  std::vector<std::shared_ptr<Job>> jobs;
  for (int i = 0; i < 4; ++i) jobs.push_back(ask(bench, tenant(1), 40 * i, 500));
  bench.engine.steps.release(5);
  Bench::wait([&] { return jobs[0]->told() && jobs[1]->told(); });
  EXPECT_FALSE(jobs[2]->accepted());
  const auto other = ask(bench, tenant(2), 200, 500);
  bench.engine.steps.release(5);
  Bench::wait_accepted(other);  // although nothing has ended
  EXPECT_FALSE(jobs[0]->done() || jobs[1]->done() || jobs[2]->accepted());
  for (const auto& job : jobs) job->gone = true;
}

TEST(Tenants, LeaveNoSlotWhereTheyNeedNot) {
  EXPECT_EQ(Tenants::most_running(tenant(1), 4), 3u);
  EXPECT_EQ(Tenants::most_running(tenant(1), 1), 1u);
  EXPECT_EQ(Tenants::most_running(tenant(1, {.max_running = 4}), 4), 4u);  // as the operator says
  EXPECT_EQ(Tenants::most_running(tenant(1, {.max_running = 2}), 4), 2u);
  EXPECT_EQ(Tenants::most_running(Tenant(), 4), 4u);
}

TEST(Tenants, RunAndWaitWithinTheirLimits) {
  Bench bench(3, 20);
  const Tenant few = tenant(1, {.max_running = 1, .max_waiting = 2});
  const auto first = ask(bench, few, 0, 50);
  Bench::wait_accepted(first);
  const auto second = ask(bench, few, 40, 50), third = ask(bench, few, 80, 50);
  EXPECT_EQ(refused(bench, few), "key_queue_full");
  const auto other = ask(bench, tenant(2), 120, 50);
  bench.engine.steps.release(2);
  Bench::wait_accepted(other);
  EXPECT_FALSE(second->accepted() || third->accepted());  // although a slot is free
  bench.engine.steps.release(60);
  Bench::wait_accepted(second);
  EXPECT_TRUE(first->done());
  bench.engine.steps.release(1000);
  Bench::wait([&] { return third->done(); });
}

TEST(Tenants, HaveTokensPerMinute) {
  Bench bench(2, 20);
  const Tenant poor = tenant(1, {.tokens_per_minute = 30});
  const auto job = ask(bench, poor, 0, 40);
  bench.engine.steps.release(1000);
  Bench::wait([&] { return job->done(); });
  int retry_after = 0;
  EXPECT_EQ(refused(bench, poor, &retry_after), "tokens_per_minute");
  EXPECT_GE(retry_after, 55);  // 60 used of 30
  EXPECT_LE(retry_after, 63);
  EXPECT_EQ(refused(bench, tenant(2)), "none");
}

TEST(Tenants, WeightsShareOutSlots) {
  Tenants tenants;
  const Tenant light = tenant(1), heavy = tenant(2, {.weight = 3});
  EXPECT_TRUE(tenants.before({heavy, 2}, {light, 1}));
  EXPECT_FALSE(tenants.before({heavy, 4}, {light, 1}));
  const auto now = Clock::now();
  tenants.charge(light, 100, now), tenants.charge(heavy, 200, now);
  EXPECT_TRUE(tenants.before({heavy, 0}, {light, 0}));
  tenants.arrive(tenant(3), 90);  // who comes now has saved nothing up
  EXPECT_FALSE(tenants.before({tenant(3), 0}, {heavy, 0}));
  EXPECT_TRUE(tenants.before({tenant(3), 0}, {light, 0}));
}

}  // namespace
}  // namespace sx::server
