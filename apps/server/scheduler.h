// The worker: one thread owns the engine, its sessions and the batch that runs on them. Between two steps it takes
// requests from a bounded queue into free slots, fairly among API keys, and puts together what a slot needs of a prompt
// from what is there: its own text, that of another session, running or not, or a state kept in memory. Texts are
// shared within a scope only (an API key). States are copied a piece between two steps, so that nobody's answer waits
// for another's.
#pragma once
#include <specextend/specextend.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "server/job.h"
#include "server/metrics.h"
#include "server/state_cache.h"
#include "server/tenants.h"
#include "server/turns.h"

namespace sx::server {

class KvEvents;

struct SchedulerOptions {
  size_t queue = 32;                     // requests that wait
  size_t cache_bytes = 0;                // of states in memory
  std::chrono::microseconds turn{4000};  // of copying states between two steps of requests that run
  size_t disk_bytes = 0;                 // of states on disk, beyond those in memory; 0: none
  std::string disk_folder{};             // where
  std::shared_ptr<KvEvents> events{};    // is told what the slots hold; null: nobody is
};

// A slot as others see it.
struct SlotState {
  bool running = false;
  int held = 0;         // tokens
  uint64_t scope = 0;   // of its text
  uint64_t tenant = 0;  // whose request runs
};

// Which slot an action is for, and whose it is. An action that does not replace the text must be of the text's scope.
struct SlotUse {
  size_t slot = 0;
  uint64_t scope = 0;
  bool replaces = false;
};
using SlotAction = std::function<void(Session&, Turns&)>;

class Scheduler {
 public:
  // The engine must outlive it, and nobody else may use it meanwhile.
  Scheduler(Engine& engine, const SchedulerOptions& options, Metrics& metrics);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // All or none, and all of one key; throws an ApiError when the queue is full, for all or for the key (429), or the
  // server is ending (503).
  void submit(std::span<const std::shared_ptr<Job>> jobs);
  // Throws what submit() would for so many jobs of the key, before anything is done for them: what is refused anyway
  // must not keep the others waiting.
  void check(const Tenant& tenant, size_t jobs);
  // Runs an action on the session of a slot, alternating with the steps; throws what it throws, 409 while the slot is
  // taken, and 403 if its text is of another scope.
  void on_slot(const SlotUse& use, SlotAction action);
  Gauges gauges() const;
  std::vector<SlotState> slots() const;
  int retry_after() const;                 // seconds until a refused request may find room, as things go
  bool failed() const { return failed_; }  // the engine broke down and could not be used any more
  // Cancels what runs and refuses what waits; returns when the worker has ended. Safe to call twice.
  void stop();

 private:
  struct Action {
    SlotUse use;
    SlotAction run;
    std::promise<void> done;
  };
  // A session that stays open between requests.
  struct Slot {
    std::unique_ptr<Session> session;
    uint64_t scope = 0;                // of the session's text
    std::shared_ptr<Job> job;          // none: it rests
    bool started = false;              // the job is in the batch
    std::shared_ptr<const Job> donor;  // whose text the job awaits
    size_t awaited = 0;                // tokens of it
    uint64_t used = 0;                 // when it was last taken, in jobs
    int refreshes = 0;                 // of the session's draft, as last counted
    std::optional<Action> action;      // that is moving
    std::unique_ptr<Turns>
        moving;  // a state into or out of the session, for the job or the action. It ends before the session
    bool free() const { return !job && !moving; }
  };

  void work();
  bool wait();                  // for something to do; false: the server ends
  std::shared_ptr<Job> next();  // off the queue; null: none can start; needs the lock
  void purge();                 // drops jobs of the queue that nobody waits for any more; needs the lock
  size_t check_room(const Tenant& tenant, size_t jobs);  // returns how many of the key wait already; needs the lock
  void act();
  void move();  // one piece of a state
  void moved(Slot& slot);
  void admit();
  void step();
  void place(std::shared_ptr<Job> job);
  bool ready(const Slot& slot) const;
  void start(Slot& slot);
  void join(Slot& slot);  // the batch
  // As much of the prompt as there is.
  void gather(Slot& slot, Turns* turns);
  bool must_move(const Slot& slot) const;  // states, to gather it
  bool worth_saving(const Slot& slot) const;
  size_t in_memory(const Job& job) const;                                   // tokens of its prompt, but for the last
  std::span<const Token> text_for(uint64_t scope, const Slot& slot) const;  // what those of a scope may share of it
  void listen(Slot& slot);
  bool forget_one();  // a text at rest, where a device's memory is full; false: there is none
  void finish(Job& job, Finished finished);
  void renew(const std::string& why);
  void publish();
  void end_all(const ApiError& error);

  Engine& engine_;
  const SchedulerOptions options_;
  Metrics& metrics_;
  StateCache cache_;
  std::vector<Slot> slots_;
  std::unique_ptr<Batch> batch_;  // after the sessions: it ends first
  uint64_t jobs_ = 0;
  std::atomic<bool> ending_{false}, failed_{false};

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> queue_;
  Tenants tenants_;
  std::deque<Action> actions_;
  std::vector<SlotState> states_;
  size_t active_ = 0;  // jobs in slots
  size_t saved_states_ = 0, saved_bytes_ = 0, disk_bytes_ = 0;
  KvMemory kv_memory_{};
  double mean_seconds_ = 1;  // of the last requests, once started
  std::thread thread_;
};

}  // namespace sx::server
