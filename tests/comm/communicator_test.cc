// Exchanges between ranks that are threads: lengths that differ, order, long messages, and how waits end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "comm/message.h"
#include "comm/threads.h"

namespace sx {
namespace {

using ::testing::HasSubstr;

void on_ranks(int size, const std::function<void(Communicator&)>& body) {
  auto ranks = make_thread_ranks(size);
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&body, &rank] { body(*rank); });
  for (auto& thread : threads) thread.join();
}

std::span<std::byte> bytes_of(std::vector<int>& values) { return std::as_writable_bytes(std::span(values)); }

TEST(Communicator, GathersUnevenParts) {
  on_ranks(4, [](Communicator& comm) {
    for (int round = 0; round < 50; ++round) {
      std::vector<std::vector<int>> parts;
      for (int r = 0; r < 4; ++r) parts.emplace_back(size_t((r * 7 + round) % 5), r == comm.rank() ? r + round : -1);
      std::vector<std::span<std::byte>> all;
      for (auto& part : parts) all.push_back(bytes_of(part));
      comm.all_gather(all);
      for (int r = 0; r < 4; ++r) EXPECT_EQ(parts[size_t(r)], std::vector<int>(size_t((r * 7 + round) % 5), r + round));
    }
  });
}

TEST(Communicator, BroadcastsAndGathersToOne) {
  on_ranks(3, [](Communicator& comm) {
    for (int root = 0; root < 3; ++root) {
      std::vector<int> said(100, comm.rank() == root ? root + 40 : 0);
      comm.broadcast(root, bytes_of(said));
      EXPECT_EQ(said, std::vector<int>(100, root + 40));
      std::vector<int> one{comm.rank()}, all[3] = {{-1}, {-1}, {-1}};
      std::vector<std::span<std::byte>> spans;
      for (int r = 0; r < 3; ++r) spans.push_back(r == comm.rank() ? bytes_of(one) : bytes_of(all[r]));
      comm.gather(root, spans);
      for (int r = 0; r < 3; ++r)
        if (r != comm.rank()) { EXPECT_EQ(all[r][0], comm.rank() == root ? r : -1); }
      comm.barrier();
    }
  });
}

TEST(Communicator, MessagesOfAnyLengthArriveInOrder) {
  on_ranks(2, [](Communicator& comm) {
    MessageBuffer buffer;
    for (size_t length : {0u, 1u, 900u, 1000u, 1008u, 1016u, 1017u, 1024u, 5000u, 100000u}) {
      std::vector<char> text(length);
      std::iota(text.begin(), text.end(), char(length));
      const int peer = 1;
      if (comm.rank() == 0) {
        buffer.clear();
        buffer.put_all(std::span<const char>(text)).put(int(length)).put_text("end");
        send_message(comm, std::span(&peer, 1), buffer.bytes());
        continue;
      }
      receive_message(comm, 0, buffer, true);
      std::vector<char> got;
      buffer.get_all(got);
      EXPECT_EQ(got, text);
      EXPECT_EQ(buffer.get<int>(), int(length));
      EXPECT_EQ(buffer.get_text(), "end");
    }
  });
}

TEST(Communicator, CountsWhatItSends) {
  on_ranks(3, [](Communicator& comm) {
    std::vector<int> values(30, 1);
    std::vector<std::span<std::byte>> all;
    for (size_t r = 0; r < 3; ++r) all.push_back(bytes_of(values).subspan(40 * r, 40));
    comm.all_gather(all);
    EXPECT_EQ(comm.traffic().messages, 2u);
    EXPECT_EQ(comm.traffic().bytes, 80u);
  });
}

TEST(Communicator, WaitsEndAtTheDeadline) {
  auto ranks = make_thread_ranks(2);
  ranks[0]->deadline_seconds = 0.05;
  std::byte one{};
  try {
    ranks[0]->receive(1, std::span(&one, 1));
    FAIL() << "nobody had sent anything";
  } catch (const Error& e) { EXPECT_THAT(e.what(), HasSubstr("for rank 1")); }
}

TEST(Communicator, AbortEndsTheWaitsOfOthers) {
  auto ranks = make_thread_ranks(2);
  std::string said;
  std::thread waits([&] {
    std::byte one{};
    try {
      ranks[0]->receive(1, std::span(&one, 1), true);
    } catch (const Error& e) { said = e.what(); }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ranks[1]->abort("the disk is full");
  waits.join();
  EXPECT_THAT(said, HasSubstr("the disk is full"));
}

}  // namespace
}  // namespace sx
