// Work in the background: in order, to its end, and without anybody waiting for it.
#include <gtest/gtest.h>
#include <specextend/give_way.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "base/background.h"
#include "support/no_threads.h"

namespace sx {
namespace {

TEST(Background, RunsTasksInOrderAndToTheEnd) {
  std::vector<int> done;
  {
    Background background;
    for (int i = 0; i < 100; ++i) background.add([&done, i] { done.push_back(i); });
  }
  ASSERT_EQ(done.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(done[size_t(i)], i);
  Background never;  // ends without ever having begun
}

TEST(Background, NobodyWaitsForATask) {
  std::promise<void> go;
  std::atomic<bool> over{false};
  Background background;
  background.add([&] {
    go.get_future().wait();
    over = true;
  });
  background.wait(background.ended(), std::chrono::milliseconds(1));
  EXPECT_FALSE(over);
  const uint64_t before = background.ended();
  go.set_value();
  background.wait(before, std::chrono::hours(1));
  EXPECT_TRUE(over);
}

// What ends between the look and the wait is not waited for.
TEST(Background, AnEndBeforeTheWaitIsSeen) {
  Background background;
  for (uint64_t i = 0; i < 200; ++i) {
    const uint64_t before = background.ended();
    EXPECT_EQ(before, i);
    std::promise<void> over;
    background.add([&] { over.set_value(); });
    over.get_future().wait();
    if (i % 2) std::this_thread::sleep_for(std::chrono::microseconds(50));
    background.wait(before, std::chrono::hours(1));
  }
  EXPECT_EQ(background.ended(), 200u);
}

TEST(Background, GivesWayToOthers) {
  const auto niceness = [] { return getpriority(PRIO_PROCESS, id_t(gettid())); };
  const int mine = niceness();
  int its = 0;
  bool gives = false;
  Background background;
  background.add([&] { its = niceness(), gives = gives_way(); });
  background.wait(0, std::chrono::hours(1));
  EXPECT_TRUE(gives);
  EXPECT_EQ(its, std::min(19, mine + 10));
  EXPECT_FALSE(gives_way());
  EXPECT_EQ(niceness(), mine);
}

// Where the system gives no thread, tasks are done all the same, and by a thread as soon as it gives one.
TEST(Background, WithoutAThreadATaskIsDoneAtOnce) {
  std::vector<std::thread::id> done;
  Background background;
  const auto add = [&] { background.add([&] { done.push_back(std::this_thread::get_id()); }); };
  const std::thread::id here = std::this_thread::get_id();
  {
    const NoThreads none;
    for (size_t i = 1; i < 4; ++i) {
      add();
      EXPECT_EQ(done, std::vector<std::thread::id>(i, here));
      EXPECT_EQ(background.ended(), i);
    }
  }
  add();
  background.wait(3, std::chrono::hours(1));
  ASSERT_EQ(done.size(), 4u);
  EXPECT_NE(done.back(), here);
}

}  // namespace
}  // namespace sx
