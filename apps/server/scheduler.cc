#include "server/scheduler.h"

#include <fmt/format.h>

#include <algorithm>

namespace sx::server {
namespace {

ApiError ending() { return {503, "unavailable_error", "the server is shutting down", "", "shutting_down"}; }

size_t common_prefix(const std::vector<Token>& a, const std::vector<Token>& b) {
  const size_t most = std::min(a.size(), b.size());
  return size_t(std::mismatch(a.begin(), a.begin() + ptrdiff_t(most), b.begin()).first - a.begin());
}

}  // namespace

Scheduler::Scheduler(Engine& engine, size_t queue_bound, Metrics& metrics)
    : engine_(engine), bound_(queue_bound), metrics_(metrics), slots_(size_t(engine.options().max_sessions)) {
  for (Slot& slot : slots_) slot.session = engine_.start();
  thread_ = std::thread([this] { work(); });
}

Scheduler::~Scheduler() { stop(); }

void Scheduler::stop() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Scheduler::submit(std::shared_ptr<Job> job) {
  const std::lock_guard lock(mutex_);
  if (ending_) throw ending();
  std::erase_if(queue_, [](const auto& waiting) { return waiting->gone.load(); });
  if (queue_.size() >= bound_)
    throw ApiError(429, "rate_limit_error", fmt::format("{} requests are waiting already: try again later", queue_.size()), "",
                   "queue_full");
  queue_.push_back(std::move(job));
  changed_.notify_all();
}

size_t Scheduler::running() const {
  const std::lock_guard lock(mutex_);
  return running_;
}

size_t Scheduler::waiting() const {
  const std::lock_guard lock(mutex_);
  return queue_.size();
}

Scheduler::Batch Scheduler::next_batch() {
  std::unique_lock lock(mutex_);
  running_ = 0;
  Batch batch;
  while (batch.empty() && !ending_) {
    changed_.wait(lock, [&] { return ending_ || !queue_.empty(); });
    for (; !queue_.empty() && batch.size() < slots_.size() && !ending_; queue_.pop_front())
      if (!queue_.front()->gone) batch.push_back(queue_.front());
  }
  running_ = batch.size();
  return batch;
}

void Scheduler::work() {
  for (Batch batch = next_batch(); !batch.empty(); batch = next_batch()) run(batch);
  const std::lock_guard lock(mutex_);
  for (const auto& job : queue_) job->fail(ending());
  queue_.clear();
}

// The session that holds most of the prompt already, else the one that has rested longest.
Scheduler::Slot& Scheduler::choose(const std::vector<Token>& prompt) {
  Slot* best = nullptr;
  size_t most = 0;
  for (Slot& slot : slots_) {
    if (slot.taken) continue;
    const size_t same = common_prefix(slot.held, prompt);
    if (!best || same > most || (same == most && slot.used < best->used)) best = &slot, most = same;
  }
  best->taken = true;
  best->used = batches_;
  return *best;
}

void Scheduler::fail(const Batch& batch, const ApiError& error) {
  for (const auto& job : batch) job->fail(error);
}

void Scheduler::run(const Batch& batch) {
  ++batches_;
  std::vector<Request> requests;
  std::vector<Slot*> slots;
  for (const auto& job : batch) {
    job->options.cancelled = [this, j = job.get()] { return j->gone.load() || ending_.load(); };
    job->options.on_text = [this, j = job.get()](std::string_view text) {
      j->push(text);
      return !j->gone.load() && !ending_.load();
    };
    slots.push_back(&choose(job->prompt));
    requests.push_back({slots.back()->session.get(), job->prompt, &job->options});
  }
  const auto release = [&] {
    for (Slot* slot : slots) slot->taken = false;
  };
  try {
    std::vector<GenerateResult> results = engine_.generate(requests);
    release();
    for (size_t i = 0; i < batch.size(); ++i) {
      slots[i]->held = batch[i]->prompt;
      slots[i]->held.insert(slots[i]->held.end(), results[i].tokens.begin(), results[i].tokens.end());
      const bool cancelled = results[i].reason == FinishReason::kCancelled;
      if (!cancelled) metrics_.add(results[i]);
      else metrics_.count_cancelled();
      if (cancelled) batch[i]->fail(ending());  // or nobody reads it
      else batch[i]->finish(std::move(results[i]));
    }
  } catch (const std::exception& e) {
    release();
    for (Slot* slot : slots) slot->held.clear();
    // A request that the engine refuses does so before any text: the others of its batch run without it.
    const bool fresh = std::none_of(batch.begin(), batch.end(), [](const auto& job) { return job->started(); });
    if (batch.size() > 1 && fresh)
      for (const auto& job : batch) run({job});
    else
      fail(batch, {500, "server_error", e.what(), "", "internal_error"});
  }
}

}  // namespace sx::server
