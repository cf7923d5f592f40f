// What other threads ask of the scheduler, and its queue: who may wait there, and whose request is next.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "server/scheduler.h"

namespace sx::server {

void Scheduler::purge() {
  const auto now = Clock::now();
  std::erase_if(queue_, [&](const std::shared_ptr<Job>& job) {
    const bool late = now >= job->deadline;
    if (job->gone) metrics_.count_cancelled();
    else if (late) metrics_.count_timeout();
    if (job->gone || late) job->fail(timed_out());  // who has gone does not read it
    return job->gone || late;
  });
}

size_t Scheduler::check_room(const Tenant& tenant, size_t jobs) {
  if (failed_) throw broken_down("the model broke down: the server must be started again");
  if (ending_) throw shutting_down();
  purge();
  const size_t places = options_.queue + (slots_.size() - active_);
  if (queue_.size() + jobs > places)
    throw ApiError(429, "rate_limit_error",
                   fmt::format("{} requests are waiting already: try again later", queue_.size()), "", "queue_full");
  const auto own = [&](const auto& job) { return job->tenant.id == tenant.id; };
  const Tenants::Demand demand{
      .jobs = jobs, .waiting = size_t(std::ranges::count_if(queue_, own)), .free = places - queue_.size()};
  try {
    tenants_.check(tenant, demand, Clock::now());
  } catch (const ApiError&) {
    metrics_.count_rejected(tenant.name);
    throw;
  }
  return demand.waiting;
}

void Scheduler::check(const Tenant& tenant, size_t jobs) {
  const std::lock_guard lock(mutex_);
  check_room(tenant, jobs);
}

void Scheduler::submit(std::span<const std::shared_ptr<Job>> jobs) {
  if (jobs.empty()) return;
  const Tenant& tenant = jobs.front()->tenant;
  const std::lock_guard lock(mutex_);
  const size_t waiting = check_room(tenant, jobs.size());
  if (waiting == 0 &&
      std::ranges::none_of(states_, [&](const SlotState& s) { return s.running && s.tenant == tenant.id; })) {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& job : queue_) least = std::min(least, tenants_.used(job->tenant.id));
    for (const SlotState& state : states_)
      if (state.running) least = std::min(least, tenants_.used(state.tenant));
    tenants_.arrive(tenant, std::isinf(least) ? 0 : least);
  }
  queue_.insert(queue_.end(), jobs.begin(), jobs.end());
  changed_.notify_all();
}

std::shared_ptr<Job> Scheduler::next() {
  const bool room = std::ranges::any_of(slots_, &Slot::free);
  std::map<uint64_t, size_t> running;  // by key
  for (const Slot& slot : slots_)
    if (slot.job) ++running[slot.job->tenant.id];
  auto best = queue_.end();
  size_t best_running = 0;
  for (auto it = queue_.begin(); it != queue_.end(); ++it) {
    const Job& job = **it;
    if (!(job.slot < 0 ? room : slots_[size_t(job.slot)].free())) continue;
    const size_t here = running[job.tenant.id];
    if (here >= Tenants::most_running(job.tenant, slots_.size())) continue;
    if (best != queue_.end() && !tenants_.before({job.tenant, here}, {(*best)->tenant, best_running})) continue;
    best = it, best_running = here;
  }
  if (best == queue_.end()) return nullptr;
  std::shared_ptr<Job> job = std::move(*best);
  queue_.erase(best);
  tenants_.charge(job->tenant, int64_t(job->prompt.size()), Clock::now());
  return job;
}

void Scheduler::on_slot(const SlotUse& use, SlotAction action) {
  std::future<void> done;
  {
    const std::lock_guard lock(mutex_);
    if (ending_ || failed_) throw shutting_down();
    actions_.push_back({use, std::move(action), {}});
    done = actions_.back().done.get_future();
    changed_.notify_all();
  }
  done.get();
}

Gauges Scheduler::gauges() const {
  const std::lock_guard lock(mutex_);
  Gauges gauges;
  gauges.running = active_;
  gauges.waiting = queue_.size();
  int64_t held = 0;
  for (const SlotState& state : states_) held += state.running ? state.held : 0;
  gauges.cache_share = double(held) / double(states_.size()) / engine_.context();
  gauges.saved_states = saved_states_, gauges.saved_bytes = saved_bytes_;
  gauges.disk_bytes = disk_bytes_, gauges.kv = kv_memory_;
  return gauges;
}

std::vector<SlotState> Scheduler::slots() const {
  const std::lock_guard lock(mutex_);
  return states_;
}

int Scheduler::retry_after() const {
  const std::lock_guard lock(mutex_);
  return int(std::clamp(std::ceil(mean_seconds_ * double(queue_.size() + 1) / double(states_.size())), 1.0, 600.0));
}

}  // namespace sx::server
