#include "server/scheduler.h"

#include <fmt/format.h>
#include <specextend/costs.h>

#include <algorithm>
#include <utility>

#include "server/kv_events.h"

namespace sx::server {
namespace {

constexpr size_t kWorthSaving = 64;  // tokens that are not thrown away if they can be kept
constexpr std::chrono::milliseconds kIdleAfter{300}, kIdlePause{5000};  // without work, before passes are measured
constexpr size_t kWorthWaiting = 32;  // tokens of a prompt that another one is about to have

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Tokens of a prompt that a cache can stand for: the last one is always run.
size_t shared(std::span<const Token> text, const Job& job) {
  return std::min(common_prefix(text, job.prompt), job.prompt.size() - 1);
}

}  // namespace

Scheduler::Scheduler(Engine& engine, const SchedulerOptions& options, Metrics& metrics)
    : engine_(engine),
      options_(options),
      metrics_(metrics),
      cache_(options.cache_bytes, options.disk_bytes, options.disk_folder),
      slots_(size_t(engine.options().max_sessions)),
      states_(slots_.size()) {
  for (Slot& slot : slots_) slot.session = engine_.start();
  batch_ = engine_.batch();
  on_full_memory(engine_, [this] { return forget_one(); });
  thread_ = std::thread([this] { work(); });
}

Scheduler::~Scheduler() {
  stop();
  on_full_memory(engine_, {});
}

void Scheduler::stop() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Scheduler::work() {
  while (wait()) {
    act();
    move();
    admit();
    publish();
    step();
  }
  end_all(shutting_down());
}

// While there is nothing to do the engine measures what its passes take, one at a time.
bool Scheduler::wait() {
  const bool busy = std::ranges::any_of(slots_, [](const Slot& slot) { return !slot.free(); });
  std::unique_lock lock(mutex_);
  const auto wanted = [&] { return ending_ || busy || !queue_.empty() || !actions_.empty(); };
  for (auto pause = kIdleAfter; !changed_.wait_for(lock, pause, wanted);) {
    lock.unlock();
    pause = measure_when_idle(engine_) ? std::chrono::milliseconds(0) : kIdlePause;
    lock.lock();
  }
  return !ending_;
}

void Scheduler::act() {
  std::deque<Action> actions;
  {
    const std::lock_guard lock(mutex_);
    actions.swap(actions_);
  }
  for (Action& action : actions) {
    const SlotUse use = action.use;
    Slot& slot = slots_[use.slot];
    const bool foreign = slot.scope != use.scope && slot.session->length() > 0;
    const auto refuse = [&](const ApiError& error) { action.done.set_exception(std::make_exception_ptr(error)); };
    if (!slot.free()) {
      refuse({409, "invalid_request_error", fmt::format("slot {} is busy", use.slot), "", "slot_busy"});
    } else if (foreign && !use.replaces) {
      refuse({403, "permission_error", fmt::format("slot {} holds a text of another key", use.slot), "",
              "slot_of_another_key"});
    } else {
      slot.used = ++jobs_;
      slot.action = std::move(action);
      slot.moving = std::make_unique<Turns>([this, &slot, foreign](Turns& turns) {
        if (foreign) {
          if (worth_saving(slot)) cache_.save(slot.scope, *slot.session, &turns);
          slot.session->truncate(0);
        }
        slot.scope = slot.action->use.scope;
        slot.action->run(*slot.session, turns);
      });
    }
  }
}

// The one that has waited longest goes on. Where no request runs it may take its time, but new ones must be seen.
void Scheduler::move() {
  constexpr int kAlone = 10;
  Slot* first = nullptr;
  for (Slot& slot : slots_)
    if (slot.moving && (!first || slot.used < first->used)) first = &slot;
  const bool alone = std::ranges::none_of(slots_, &Slot::started);
  if (first && first->moving->go_on(options_.turn * (alone ? kAlone : 1))) moved(*first);
}

void Scheduler::moved(Slot& slot) {
  const std::exception_ptr failure = slot.moving->failure();
  slot.moving = nullptr;
  if (!slot.action) {
    if (failure) slot.session->truncate(0);  // then the prompt is run from its beginning
    return join(slot);
  }
  Action action = *std::exchange(slot.action, std::nullopt);
  publish();  // before the one who asked goes on
  if (failure) action.done.set_exception(failure);
  else action.done.set_value();
}

void Scheduler::admit() {
  for (Slot& slot : slots_)
    if (slot.job && !slot.started && !slot.moving && ready(slot)) start(slot);
  for (;;) {
    std::shared_ptr<Job> job;
    {
      const std::lock_guard lock(mutex_);
      purge();
      job = next();
      if (!job) return;
      ++active_;
    }
    place(std::move(job));
  }
}

// Into the slot that holds most of the prompt, unless that would forget more than it spares: then into the one that has
// rested longest. It starts at once, or when another request has got as far as their prompts agree.
void Scheduler::place(std::shared_ptr<Job> job) {
  Slot *best = nullptr, *oldest = nullptr;
  size_t own = 0, have = job->reuse ? in_memory(*job) : 0, coming = 0;
  std::shared_ptr<const Job> donor;
  for (Slot& slot : slots_) {
    const size_t here = shared(text_for(job->scope, slot), *job);
    if (job->reuse) have = std::max(have, here);
    if (slot.free()) {
      if (!oldest || slot.used < oldest->used) oldest = &slot;
      if (!best || here > own || (here == own && slot.used < best->used)) best = &slot, own = here;
    } else if (slot.job && slot.job->scope == job->scope && job->reuse && slot.job->reuse) {
      if (const size_t common = shared(slot.job->prompt, *job); common > coming) coming = common, donor = slot.job;
    }
  }
  const bool fits = own == have && own > 0 && best->session->text().size() <= 2 * own;
  Slot& slot = job->slot >= 0 ? slots_[size_t(job->slot)] : fits ? *best : *oldest;
  slot.job = std::move(job);
  slot.job->started = Clock::now();
  slot.used = ++jobs_;
  const bool worth = coming >= have + kWorthWaiting && 2 * (coming - have) >= slot.job->prompt.size() - have;
  if (worth) slot.donor = std::move(donor), slot.awaited = coming;
  if (ready(slot)) start(slot);
}

// A donor that has ended, however it ended, is in no slot; one that has said a token has its whole prompt.
bool Scheduler::ready(const Slot& slot) const {
  if (!slot.donor || slot.job->cancelled(ending_)) return true;
  const auto giver = std::ranges::find(slots_, slot.donor, &Slot::job);
  if (giver == slots_.end()) return true;
  if (!giver->started) return false;
  return giver->job->tokens > 0 || shared(text_for(slot.job->scope, *giver), *slot.job) >= slot.awaited;
}

std::span<const Token> Scheduler::text_for(uint64_t scope, const Slot& slot) const {
  if (slot.moving || slot.scope != scope) return {};
  return slot.session->text();
}

size_t Scheduler::in_memory(const Job& job) const {
  return std::min(cache_.longest(job.scope, job.prompt), job.prompt.size() - 1);
}

bool Scheduler::worth_saving(const Slot& slot) const {
  const std::span<const Token> text = slot.session->text();
  const size_t kept = slot.job && slot.job->scope == slot.scope ? shared(text, *slot.job) : 0;
  return text.size() >= kept + kWorthSaving && std::ranges::none_of(slots_, [&](const Slot& other) {
           return &other != &slot && common_prefix(text_for(slot.scope, other), text) + kWorthSaving > text.size();
         });
}

bool Scheduler::must_move(const Slot& slot) const {
  const Job& job = *slot.job;
  size_t most = 0;
  for (const Slot& other : slots_) most = std::max(most, shared(text_for(job.scope, other), job));
  return worth_saving(slot) || in_memory(job) > most;
}

void Scheduler::gather(Slot& slot, Turns* turns) {
  Session& session = *slot.session;
  const Job& job = *slot.job;
  if (worth_saving(slot)) cache_.save(slot.scope, session, turns);
  if (slot.scope != job.scope) session.truncate(0);
  slot.scope = job.scope;
  const Slot* from = nullptr;
  size_t most = shared(session.text(), job);
  for (const Slot& other : slots_)
    if (const size_t here = shared(text_for(job.scope, other), job); &other != &slot && here > most)
      from = &other, most = here;
  if (in_memory(job) > most && cache_.restore(job.scope, job.prompt, session, turns)) return;
  if (from) session.copy_from(*from->session, int(most));
}

void Scheduler::start(Slot& slot) {
  slot.donor = nullptr;
  if (slot.job->reuse && must_move(slot)) {
    slot.moving = std::make_unique<Turns>([this, &slot](Turns& turns) { gather(slot, &turns); });
    return;
  }
  try {
    if (slot.job->reuse) gather(slot, nullptr);
    else slot.session->truncate(0);
  } catch (const std::exception&) {
    slot.session->truncate(0);  // then the prompt is run from its beginning
  }
  join(slot);
}

void Scheduler::join(Slot& slot) {
  if (slot.scope != slot.job->scope) slot.session->truncate(0);  // whatever went wrong before
  slot.scope = slot.job->scope;
  listen(slot);
  try {
    batch_->add({slot.session.get(), slot.job->prompt, &slot.job->options});
    slot.started = true;
    slot.job->accept();
    return;
  } catch (const Error& e) { slot.job->fail(bad_request(e.what())); } catch (const std::exception& e) {
    slot.job->fail(broken_down(e.what()));
  }
  slot.job = nullptr;
}

// The callbacks of a job: what the counters need, and what its client wants to hear of.
void Scheduler::listen(Slot& slot) {
  Job* job = slot.job.get();
  job->options.cancelled = [this, job] { return job->cancelled(ending_); };
  job->options.on_prefill = [this, job, cached = -1](int done, int) mutable {
    if (cached < 0) cached = done;  // the first call comes before any pass
    Timings now = job->counted;
    now.cached_tokens = cached, now.prompt_tokens = done - cached;
    metrics_.add_progress(std::exchange(job->counted, now), now);
  };
  job->options.on_round = [this, job, &slot, last = Clock::time_point()](const RoundInfo& round) mutable {
    const auto now = Clock::now();
    metrics_.add_round(round, int(job->prompt.size()) + job->tokens,
                       last == Clock::time_point() ? 0 : seconds(last, now));
    last = now;
    metrics_.add_progress(std::exchange(job->counted, round.timings), round.timings);
    const int before = round.refreshes < slot.refreshes ? 0 : slot.refreshes;  // the session began anew
    if (round.refreshes > before) metrics_.add_refreshes(round.refreshes - before);
    slot.refreshes = round.refreshes;
  };
  job->begin(engine_.tokenizer(), *slot.session, int(&slot - slots_.data()));
}

void Scheduler::step() {
  try {
    if (batch_->step()) metrics_.count_step();
    std::vector<std::pair<std::shared_ptr<Job>, Finished>> ended;
    for (Finished& finished : batch_->take_finished()) {
      const auto slot = std::ranges::find(slots_, finished.session, [](const Slot& s) { return s.session.get(); });
      slot->started = false;
      ended.emplace_back(std::exchange(slot->job, nullptr), std::move(finished));
    }
    publish();  // before those who wait go on
    for (auto& [job, finished] : ended) finish(*job, std::move(finished));
  } catch (const std::exception& e) { renew(e.what()); }
}

// The text that has rested longest.
bool Scheduler::forget_one() {
  Slot* oldest = nullptr;
  for (Slot& slot : slots_)
    if (slot.free() && slot.session && slot.session->length() > 0 && (!oldest || slot.used < oldest->used))
      oldest = &slot;
  if (oldest) oldest->session->truncate(0);
  return oldest != nullptr;
}

void Scheduler::finish(Job& job, Finished finished) {
  const auto now = Clock::now();
  GenerateResult& result = finished.result;
  metrics_.add_progress(job.counted, result.timings);
  metrics_.add_key(job.tenant.name, int64_t(job.prompt.size()), job.tokens);
  {
    const std::lock_guard lock(mutex_);
    tenants_.charge(job.tenant, job.tokens, now);
  }
  if (finished.no_memory) return job.fail({503, "unavailable_error", finished.error, "", "out_of_memory"});
  if (!finished.error.empty()) {
    const bool grammars = finished.error.starts_with("grammar:");
    return job.fail(finished.models_fault ? broken_down(finished.error)
                                          : bad_request(finished.error, grammars ? job.grammar_field : ""));
  }
  if (result.reason == FinishReason::kCancelled) {
    if (job.gone) metrics_.count_cancelled();
    else if (!ending_) metrics_.count_timeout();
    return job.fail(ending_ ? shutting_down() : timed_out());  // who has gone does not read it
  }
  metrics_.add(result,
               {seconds(job.arrived, job.started), seconds(job.arrived, job.first_token), seconds(job.arrived, now)},
               {job.choices, job.options.max_tokens});
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
    slot.moving = nullptr;  // to its end
    if (std::exchange(slot.started, false)) ended.push_back(std::exchange(slot.job, nullptr));
    slot.session.reset();
    slot.scope = 0;
  }
  publish();
  for (const auto& job : ended) job->fail(broken_down(why));
  for (Slot& slot : slots_)
    if (auto action = std::exchange(slot.action, std::nullopt))
      action->done.set_exception(std::make_exception_ptr(broken_down(why)));
  try {
    for (Slot& slot : slots_) slot.session = engine_.start();
    batch_ = engine_.batch();
  } catch (const std::exception& e) {
    failed_ = true;
    end_all(broken_down(e.what()));
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
}

void Scheduler::publish() {
  if (options_.events) {
    for (size_t i = 0; i < slots_.size(); ++i)
      if (const Slot& slot = slots_[i]; !slot.moving)
        options_.events->update(i, slot.scope, slot.session ? slot.session->text() : std::span<const Token>());
    options_.events->flush();
  }
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < slots_.size(); ++i)
    states_[i] = {.running = slots_[i].job != nullptr,
                  .held = slots_[i].session ? slots_[i].session->length() : 0,
                  .scope = slots_[i].scope,
                  .tenant = slots_[i].job ? slots_[i].job->tenant.id : 0};
  active_ = size_t(std::ranges::count(states_, true, &SlotState::running));
  saved_states_ = cache_.size(), saved_bytes_ = cache_.bytes();
  disk_bytes_ = cache_.disk_bytes(), kv_memory_ = kv_memory(engine_);
}

void Scheduler::end_all(const ApiError& error) {
  batch_.reset();
  for (Slot& slot : slots_) {
    slot.moving = nullptr;  // to its end
    if (auto action = std::exchange(slot.action, std::nullopt))
      action->done.set_exception(std::make_exception_ptr(error));
    if (slot.job) slot.job->fail(error), slot.job = nullptr;
    slot.started = false;
  }
  const std::lock_guard lock(mutex_);
  for (const auto& job : queue_) job->fail(error);
  queue_.clear();
  for (Action& action : actions_) action.done.set_exception(std::make_exception_ptr(error));
  actions_.clear();
}

}  // namespace sx::server
