#include "server/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace sx::server {
namespace {

constexpr size_t kWorthSaving = 64;   // tokens that are not thrown away if they can be kept
constexpr size_t kWorthWaiting = 32;  // tokens of a prompt that another one is about to have

ApiError ending() { return {503, "unavailable_error", "the server is shutting down", "", "shutting_down"}; }
ApiError timed_out() { return {503, "timeout_error", "the request took longer than this server allows", "", "timeout"}; }
ApiError broken(const std::string& why) { return {500, "server_error", why, "", "internal_error"}; }

double seconds(Clock::time_point from, Clock::time_point to) { return std::chrono::duration<double>(to - from).count(); }

// Tokens of a prompt that a cache can stand for: the last one is always run.
size_t shared(std::span<const Token> text, const Job& job) {
  return std::min(common_prefix(text, job.prompt), job.prompt.size() - 1);
}

}  // namespace

Scheduler::Scheduler(Engine& engine, const SchedulerOptions& options, Metrics& metrics)
    : engine_(engine), options_(options), metrics_(metrics), cache_(options.cache_bytes),
      slots_(size_t(engine.options().max_sessions)), states_(slots_.size()) {
  for (Slot& slot : slots_) slot.session = engine_.start();
  batch_ = engine_.batch();
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

void Scheduler::submit(std::span<const std::shared_ptr<Job>> jobs) {
  const std::lock_guard lock(mutex_);
  if (failed_) throw broken("the model broke down: the server must be started again");
  if (ending_) throw ending();
  purge();
  if (queue_.size() + jobs.size() > options_.queue + (slots_.size() - active_))
    throw ApiError(429, "rate_limit_error", fmt::format("{} requests are waiting already: try again later", queue_.size()), "",
                   "queue_full");
  queue_.insert(queue_.end(), jobs.begin(), jobs.end());
  changed_.notify_all();
}

void Scheduler::on_slot(size_t slot, std::function<void(Session&)> action) {
  std::future<void> done;
  {
    const std::lock_guard lock(mutex_);
    if (ending_ || failed_) throw ending();
    actions_.push_back({slot, std::move(action), {}});
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
  for (const SlotState& state : states_) held += state.held;
  gauges.cache_share = double(held) / double(states_.size()) / engine_.context();
  gauges.saved_states = saved_states_, gauges.saved_bytes = saved_bytes_;
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

void Scheduler::work() {
  while (wait()) {
    act();
    admit();
    publish();
    step();
  }
  end_all(ending());
}

bool Scheduler::wait() {
  const bool busy = std::ranges::any_of(slots_, [](const Slot& slot) { return slot.job != nullptr; });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ending_ || busy || !queue_.empty() || !actions_.empty(); });
  return !ending_;
}

void Scheduler::act() {
  std::deque<Action> actions;
  {
    const std::lock_guard lock(mutex_);
    actions.swap(actions_);
  }
  for (Action& action : actions) {
    Slot& slot = slots_[action.slot];
    std::exception_ptr failure;
    try {
      if (slot.job) throw ApiError(409, "invalid_request_error", fmt::format("slot {} is busy", action.slot), "", "slot_busy");
      slot.used = ++jobs_;
      action.run(*slot.session);
    } catch (...) {
      failure = std::current_exception();
    }
    publish();  // before the one who asked goes on
    if (failure) action.done.set_exception(failure);
    else action.done.set_value();
  }
}

void Scheduler::admit() {
  for (Slot& slot : slots_)
    if (slot.donor && ready(slot)) start(slot);
  for (;;) {
    std::shared_ptr<Job> job;
    {
      const std::lock_guard lock(mutex_);
      purge();
      const bool room = std::ranges::any_of(slots_, [](const Slot& slot) { return !slot.job; });
      const auto next = std::ranges::find_if(queue_, [&](const auto& j) { return j->slot < 0 ? room : !slots_[size_t(j->slot)].job; });
      if (next == queue_.end()) return;
      job = std::move(*next);
      queue_.erase(next);
      ++active_;
    }
    place(std::move(job));
  }
}

// Into the slot that holds most of the prompt, unless that would forget more than it spares: then into the one that has rested
// longest. It starts at once, or when another request has got as far as their prompts agree.
void Scheduler::place(std::shared_ptr<Job> job) {
  Slot *best = nullptr, *oldest = nullptr;
  size_t own = 0, have = job->reuse ? std::min(cache_.longest(job->prompt), job->prompt.size() - 1) : 0, coming = 0;
  const Slot* donor = nullptr;
  for (Slot& slot : slots_) {
    const size_t here = shared(slot.session->text(), *job);
    if (job->reuse) have = std::max(have, here);
    if (!slot.job) {
      if (!oldest || slot.used < oldest->used) oldest = &slot;
      if (!best || here > own || (here == own && slot.used < best->used)) best = &slot, own = here;
    } else if (const size_t common = shared(slot.job->prompt, *job); job->reuse && slot.job->reuse && common > coming) {
      coming = common, donor = &slot;
    }
  }
  const bool fits = own == have && own > 0 && best->session->text().size() <= 2 * own;
  Slot& slot = job->slot >= 0 ? slots_[size_t(job->slot)] : fits ? *best : *oldest;
  slot.job = std::move(job);
  slot.job->started = Clock::now();
  slot.used = ++jobs_;
  const bool worth = coming >= have + kWorthWaiting && 2 * (coming - have) >= slot.job->prompt.size() - have;
  if (worth) slot.donor = donor, slot.awaited = coming;
  if (!slot.donor || ready(slot)) start(slot);
}

bool Scheduler::ready(const Slot& slot) const {
  if (slot.job->cancelled(ending_)) return true;
  const Slot& donor = *slot.donor;
  if (!donor.job) return true;
  return !donor.donor && shared(donor.session->text(), *slot.job) >= slot.awaited;
}

bool Scheduler::held_elsewhere(const Slot& slot) const {
  const std::span<const Token> text = slot.session->text();
  return std::ranges::any_of(slots_, [&](const Slot& other) {
    return &other != &slot && common_prefix(other.session->text(), text) + kWorthSaving > text.size();
  });
}

void Scheduler::gather(Slot& slot) {
  Session& session = *slot.session;
  const size_t own = shared(session.text(), *slot.job);
  if (session.text().size() >= own + kWorthSaving && !held_elsewhere(slot)) cache_.save(session);
  const Slot* from = nullptr;
  size_t most = own;
  for (const Slot& other : slots_)
    if (const size_t here = shared(other.session->text(), *slot.job); &other != &slot && here > most) from = &other, most = here;
  if (cache_.longest(slot.job->prompt) > most && cache_.restore(slot.job->prompt, session)) return;
  if (from) session.copy_from(*from->session, int(most));
}

void Scheduler::start(Slot& slot) {
  slot.donor = nullptr;
  try {
    if (slot.job->reuse) gather(slot);
    else slot.session->truncate(0);
  } catch (const std::exception&) {
    slot.session->truncate(0);  // then the prompt is run from its beginning
  }
  listen(slot);
  try {
    batch_->add({slot.session.get(), slot.job->prompt, &slot.job->options});
    slot.job->accept();
  } catch (const Error& e) {
    slot.job->fail(bad_request(e.what()));
    slot.job = nullptr;
  } catch (const std::exception& e) {
    slot.job->fail(broken(e.what()));
    slot.job = nullptr;
  }
}

// The callbacks of a job: what the counters need, and what its client wants to hear of.
void Scheduler::listen(Slot& slot) {
  Job* job = slot.job.get();
  job->options.cancelled = [this, job] { return job->cancelled(ending_); };
  job->options.on_round = [this, job, &slot, last = Clock::time_point()](const RoundInfo& round) mutable {
    const auto now = Clock::now();
    metrics_.add_round(round, int(job->prompt.size()) + job->tokens, last == Clock::time_point() ? 0 : seconds(last, now));
    last = now;
    const int before = round.refreshes < slot.refreshes ? 0 : slot.refreshes;  // the session began anew
    if (round.refreshes > before) metrics_.add_refreshes(round.refreshes - before);
    slot.refreshes = round.refreshes;
  };
  job->begin(engine_, *slot.session, int(&slot - slots_.data()), int(shared(slot.session->text(), *job)));
}

void Scheduler::step() {
  try {
    batch_->step();
    std::vector<std::pair<std::shared_ptr<Job>, Finished>> ended;
    for (Finished& finished : batch_->take_finished()) {
      const auto slot = std::ranges::find(slots_, finished.session, [](const Slot& s) { return s.session.get(); });
      ended.emplace_back(std::exchange(slot->job, nullptr), std::move(finished));
    }
    publish();  // before those who wait go on
    for (auto& [job, finished] : ended) finish(*job, std::move(finished));
  } catch (const std::exception& e) {
    renew(e.what());
  }
}

void Scheduler::finish(Job& job, Finished finished) {
  if (!finished.error.empty()) return job.fail(finished.models_fault ? broken(finished.error) : bad_request(finished.error));
  const auto now = Clock::now();
  GenerateResult& result = finished.result;
  if (result.reason == FinishReason::kCancelled) {
    if (job.gone) metrics_.count_cancelled();
    else if (!ending_) metrics_.count_timeout();
    return job.fail(ending_ ? ending() : timed_out());  // who has gone does not read it
  }
  metrics_.add(result, {seconds(job.arrived, job.started), seconds(job.arrived, job.first_token), seconds(job.arrived, now)});
  {
    const std::lock_guard lock(mutex_);
    mean_seconds_ = 0.8 * mean_seconds_ + 0.2 * seconds(job.started, now);
  }
  job.finish(std::move(result));
}

// After an error inside a step nothing is known of what the sessions hold.
void Scheduler::renew(const std::string& why) {
  batch_.reset();
  std::vector<std::shared_ptr<Job>> ended;
  for (Slot& slot : slots_) {
    if (slot.job && !slot.donor) ended.push_back(std::exchange(slot.job, nullptr));
    slot.session.reset();
  }
  publish();
  for (const auto& job : ended) job->fail(broken(why));
  try {
    for (Slot& slot : slots_) slot.session = engine_.start();
    batch_ = engine_.batch();
  } catch (const std::exception& e) {
    failed_ = true;
    end_all(broken(e.what()));
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
}

void Scheduler::publish() {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < slots_.size(); ++i)
    states_[i] = {slots_[i].job != nullptr, slots_[i].session ? slots_[i].session->length() : 0};
  active_ = size_t(std::ranges::count(states_, true, &SlotState::running));
  saved_states_ = cache_.size(), saved_bytes_ = cache_.bytes();
}

void Scheduler::end_all(const ApiError& error) {
  batch_.reset();
  for (Slot& slot : slots_)
    if (slot.job) slot.job->fail(error), slot.job = nullptr;
  const std::lock_guard lock(mutex_);
  for (const auto& job : queue_) job->fail(error);
  queue_.clear();
  for (Action& action : actions_) action.done.set_exception(std::make_exception_ptr(error));
  actions_.clear();
}

}  // namespace sx::server
