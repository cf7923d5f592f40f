#include "comm/threads.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>

#include "base/error.h"

namespace sx {
namespace {

// What all ranks share: a queue of messages for each pair of them.
struct Board {
  explicit Board(int ranks) : size(ranks), queues(static_cast<size_t>(ranks) * static_cast<size_t>(ranks)) {}
  std::deque<std::vector<std::byte>>& queue(int from, int to) {
    return queues[static_cast<size_t>(from) * static_cast<size_t>(size) + static_cast<size_t>(to)];
  }
  const int size;
  std::mutex lock;
  std::condition_variable changed;
  std::vector<std::deque<std::vector<std::byte>>> queues;
  std::string given_up;  // why; empty: it goes on
};

class ThreadRank final : public Communicator {
 public:
  ThreadRank(std::shared_ptr<Board> board, int rank) : board_(std::move(board)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return board_->size; }
  std::string kind() const override { return "threads of one process"; }
  void abort(const std::string& reason) noexcept override {
    const std::lock_guard hold(board_->lock);
    if (board_->given_up.empty()) board_->given_up = reason.empty() ? "no reason was given" : reason;
    board_->changed.notify_all();
  }
  std::string lost() const override {
    const std::lock_guard hold(board_->lock);
    return board_->given_up;
  }

 protected:
  void do_exchange(std::span<const Outgoing> out, std::span<const Incoming> in, bool idle) override {
    std::unique_lock hold(board_->lock);
    for (const Outgoing& message : out)
      board_->queue(rank_, message.to).emplace_back(message.bytes.begin(), message.bytes.end());
    if (!out.empty()) board_->changed.notify_all();
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(deadline_seconds);
    for (const Incoming& message : in) {
      auto& queue = board_->queue(message.from, rank_);
      const auto ready = [&] { return !queue.empty() || !board_->given_up.empty(); };
      if (idle) board_->changed.wait(hold, ready);
      else if (!board_->changed.wait_until(hold, until, ready))
        fail("rank {} has waited {} s for {}", rank_, deadline_seconds, describe(message.from));
      if (!board_->given_up.empty()) fail("the ranks have given up: {}", board_->given_up);
      SX_ASSERT(queue.front().size() == message.bytes.size());
      std::memcpy(message.bytes.data(), queue.front().data(), message.bytes.size());
      queue.pop_front();
    }
  }

 private:
  std::shared_ptr<Board> board_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_ranks(int size) {
  SX_ASSERT(size > 0);
  auto board = std::make_shared<Board>(size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(std::make_unique<ThreadRank>(board, r));
  return ranks;
}

}  // namespace sx
