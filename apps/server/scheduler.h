// The worker: one thread owns the engine and its sessions. It takes what waits, up to as many requests as there are
// sessions, and runs them as one batch to its end; what comes meanwhile waits in a bounded queue.
#pragma once
#include <specextend/specextend.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "server/job.h"
#include "server/metrics.h"

namespace sx::server {

class Scheduler {
 public:
  // The engine must outlive it, and nobody else may use it meanwhile.
  Scheduler(Engine& engine, size_t queue_bound, Metrics& metrics);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Throws an ApiError when the queue is full (429) or the server is ending (503).
  void submit(std::shared_ptr<Job> job);
  size_t running() const;
  size_t waiting() const;
  // Cancels what runs and refuses what waits; returns when the worker has ended. Safe to call twice.
  void stop();

 private:
  // A session that stays open between requests, and what it roughly holds.
  struct Slot {
    std::unique_ptr<Session> session;
    std::vector<Token> held;
    uint64_t used = 0;       // batch that used it last
    bool taken = false;
  };
  using Batch = std::vector<std::shared_ptr<Job>>;

  void work();
  Batch next_batch();        // empty: the server ends
  void run(const Batch& batch);
  Slot& choose(const std::vector<Token>& prompt);
  void fail(const Batch& batch, const ApiError& error);

  Engine& engine_;
  const size_t bound_;
  Metrics& metrics_;
  std::vector<Slot> slots_;
  uint64_t batches_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> queue_;
  size_t running_ = 0;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace sx::server
