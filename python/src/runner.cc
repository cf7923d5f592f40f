#include "runner.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "server/logprobs.h"

namespace sx::python {

// ---- calls

Call::Call(std::vector<Token> prompt, GenerateOptions options, const CallWants& wants, std::shared_ptr<Place> place)
    : prompt_(std::move(prompt)), options_(std::move(options)), wants_(wants), place_(std::move(place)) {}

Call::~Call() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void Call::listen() {
  options_.token_logits = wants_.logprobs >= 0;
  options_.cancelled = [this] { return gone_.load(std::memory_order_relaxed); };
  options_.on_token = [this](const TokenInfo& info) {
    CallToken token{.token = info.token, .depth = info.depth};
    if (wants_.logprobs >= 0) {
      const server::Logprob found = server::logprob_of(info.logits, info.token, wants_.logprobs);
      token.logprob = found.logprob;
      for (const server::TopToken& t : found.top) token.top.emplace_back(t.token, t.logprob);
    }
    if (wants_.pieces) next_.tokens.push_back(token);
    tokens_.push_back(std::move(token));
  };
  if (wants_.pieces)
    options_.on_text = [this](std::string_view text) {
      next_.text = text;
      add(std::exchange(next_, {}));
    };
  if (wants_.scores_prompt)
    options_.on_prompt_token = [this](const TokenInfo& info) {
      scores_.push_back(server::logprob_of(info.logits, info.token, 0).logprob);
    };
}

void Call::wake() {
  changed_.notify_all();
  if (descriptor_ < 0) return;
  armed_ = false;
  const uint64_t one = 1;
  [[maybe_unused]] const auto ignored = ::write(descriptor_, &one, sizeof one);
}

void Call::add(CallPiece piece) {
  const std::lock_guard lock(mutex_);
  ready_.push_back(std::move(piece));
  if (waiting_ > 0 || armed_) wake();
}

void Call::finish(GenerateResult result) {
  const std::lock_guard lock(mutex_);
  if (!next_.tokens.empty()) ready_.push_back(std::exchange(next_, {}));  // tokens without text
  result_ = std::move(result);
  done_ = true;
  wake();
}

void Call::fail(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  error_ = std::move(error);
  done_ = true;
  wake();
}

bool Call::wait(std::chrono::milliseconds most) {
  const auto end = std::chrono::steady_clock::now() + most;
  std::unique_lock lock(mutex_);
  if (changed_.wait_until(lock, std::min(end, next_look_), [&] { return done_; })) return true;
  if (next_look_ > end) return false;
  ++waiting_;
  const bool there = changed_.wait_until(lock, end, [&] { return done_ || !ready_.empty(); });
  --waiting_;
  return there;
}

bool Call::wait_done(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, most, [&] { return done_; });
}

std::chrono::microseconds Call::pause() {
  const std::lock_guard lock(mutex_);
  if (done_) return {};
  const auto ahead = next_look_ - std::chrono::steady_clock::now();
  return std::max(std::chrono::ceil<std::chrono::microseconds>(ahead), std::chrono::microseconds(0));
}

int Call::descriptor() {
  const std::lock_guard lock(mutex_);
  if (descriptor_ >= 0) return descriptor_;
  descriptor_ = ::eventfd(done_, EFD_CLOEXEC | EFD_NONBLOCK);
  if (descriptor_ < 0) throw Error(std::string("cannot make an eventfd: ") + std::strerror(errno));
  return descriptor_;
}

void Call::arm() {
  const std::lock_guard lock(mutex_);
  armed_ = true;
  if (done_ || !ready_.empty()) wake();
}

void Call::clear_descriptor() {
  uint64_t count = 0;
  [[maybe_unused]] const auto ignored = ::read(descriptor_, &count, sizeof count);
}

std::vector<CallPiece> Call::take() {
  const std::lock_guard lock(mutex_);
  if (!ready_.empty()) next_look_ = std::chrono::steady_clock::now() + kPause;
  return std::exchange(ready_, {});
}

bool Call::done() {
  const std::lock_guard lock(mutex_);
  return done_;
}

GenerateResult Call::result() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  return std::move(result_);
}

std::vector<CallToken> Call::take_tokens() {
  const std::lock_guard lock(mutex_);
  return std::exchange(tokens_, {});
}

std::vector<double> Call::take_scores() {
  const std::lock_guard lock(mutex_);
  return std::exchange(scores_, {});
}

// ---- the engine's thread

namespace {

constexpr const char* kClosed = "this LLM is closed";

std::mutex all_mutex;
std::vector<Runner*> all_runners;

}  // namespace

Runner::Runner(const EngineOptions& options)
    : engine_(Engine::open(options)), owner_(::getpid()), changed_(std::make_unique<std::condition_variable>()) {
  thread_ = std::thread([this] { work(); });
  const std::lock_guard lock(all_mutex);
  all_runners.push_back(this);
}

Runner::~Runner() {
  {
    const std::lock_guard lock(all_mutex);
    std::erase(all_runners, this);
  }
  close();
}

void Runner::close_all() {
  const std::lock_guard lock(all_mutex);
  for (Runner* runner : all_runners) runner->close();
}

void Runner::close() {
  if (::getpid() != owner_) {  // a child has neither the thread nor the engine's own ones: nothing can be ended here
    if (thread_.joinable()) thread_.detach();
    (void)engine_.release();
    (void)batch_.release();
    for (auto& place : pool_) (void)place->session.release();
    (void)changed_.release();  // the thread waits on it for ever, and its destructor would wait for the thread
    (void)new std::vector(std::move(running_));
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_->notify_all();
  if (thread_.joinable()) thread_.join();
}

void Runner::check_process() const {
  if (::getpid() != owner_)
    throw Error(
        "this LLM was opened before fork(), and its threads are in the parent process: open an LLM in the child");
}

void Runner::submit(std::shared_ptr<Call> call) {
  check_process();
  {
    const std::lock_guard lock(mutex_);
    if (ending_) throw Error(kClosed);
    queue_.push_back(std::move(call));
  }
  changed_->notify_all();
}

void Runner::add_task(Task task, const std::function<void()>& poll) {
  check_process();
  const std::shared_ptr<Call> done = task.done;
  {
    const std::lock_guard lock(mutex_);
    if (ending_) throw Error(kClosed);
    tasks_.push_back(std::move(task));
  }
  changed_->notify_all();
  while (!done->wait(std::chrono::milliseconds(100)))
    if (poll) poll();
  done->result();
}

void Runner::run(std::function<void(Engine&)> work, const std::function<void()>& poll) {
  add_task({std::move(work), false, std::make_shared<Call>()}, poll);
}

void Runner::run_alone(std::function<void(Engine&, Session&)> work, const std::function<void()>& poll) {
  const auto with_session = [this, &work](Engine& engine) {
    batch_.reset();
    const auto place = place_for({});
    if (!place) throw Error(no_session());
    place->session->truncate(0);
    work(engine, *place->session);
  };
  add_task({with_session, true, std::make_shared<Call>()}, poll);
}

std::shared_ptr<Place> Runner::start() {
  auto place = std::make_shared<Place>();
  run([&](Engine& engine) {
    if (open_ == engine.options().max_sessions && !make_room()) throw Error(no_session());
    place->session = engine.start();
    ++open_;
    std::erase_if(named_, [](const auto& other) { return other.expired(); });
    named_.push_back(place);
  });
  return place;
}

void Runner::end_session(Place& place) {
  if (!place.session) return;
  place.session.reset();
  --open_;
}

void Runner::end(const std::shared_ptr<Place>& place) {
  if (::getpid() != owner_) return (void)place->session.release();
  const auto work = [this, place](Engine&) {
    if (place->busy) place->ending = true;
    else end_session(*place);
  };
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  tasks_.push_back({work, false, nullptr});
  changed_->notify_all();
}

std::string Runner::no_session() const {
  return "all " + std::to_string(engine_->options().max_sessions) +
         " sessions of the LLM are in use: close one, or open it with a larger `parallel`";
}

void Runner::work() {
  const auto idle = [&] { return !ending_ && queue_.empty() && tasks_.empty() && running_.empty(); };
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_->wait(lock, [&] { return !idle(); });
      if (ending_) break;
    }
    run_tasks();
    admit();
    step();
  }
  const auto error = std::make_exception_ptr(Error("the LLM was closed while the request ran"));
  batch_.reset();
  const std::lock_guard lock(mutex_);
  for (const auto& call : running_) call->fail(error);
  for (const auto& call : queue_) call->fail(error);
  for (const Task& task : tasks_)
    if (task.done) task.done->fail(error);
  running_.clear(), queue_.clear();
  for (const auto& weak : named_)
    if (const auto place = weak.lock()) end_session(*place);
  for (const auto& place : pool_) end_session(*place);  // whoever else has the place
  tasks_.clear(), pool_.clear();
  ended_ = true;
}

void Runner::run_tasks() {
  std::deque<Task> now;
  {
    const std::lock_guard lock(mutex_);
    while (!tasks_.empty() && (!tasks_.front().alone || running_.empty())) {
      now.push_back(std::move(tasks_.front()));
      tasks_.pop_front();
    }
  }
  for (Task& task : now) {
    try {
      task.work(*engine_);
      if (task.done) task.done->finish({});
    } catch (...) {
      if (task.done) task.done->fail(std::current_exception());
    }
  }
}

bool Runner::make_room() {
  const auto idle = std::find_if(pool_.begin(), pool_.end(), [](const auto& place) { return !place->busy; });
  if (idle == pool_.end()) return false;
  pool_.erase(idle);
  --open_;
  return true;
}

std::shared_ptr<Place> Runner::place_for(const std::vector<Token>& prompt) {
  std::shared_ptr<Place> best;
  size_t longest = 0;
  for (const auto& place : pool_) {
    if (place->busy) continue;
    const auto text = place->session->text();
    const size_t common =
        size_t(std::mismatch(text.begin(), text.end(), prompt.begin(), prompt.end()).first - text.begin());
    if (!best || common > longest) best = place, longest = common;
  }
  // A new session for a new text, so that the others keep theirs.
  if (longest <= 1 && open_ < engine_->options().max_sessions) {
    best = std::make_shared<Place>();
    best->session = engine_->start();
    ++open_;
    pool_.push_back(best);
  }
  return best;
}

void Runner::admit() {
  std::deque<std::shared_ptr<Call>> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (!tasks_.empty() && tasks_.front().alone) return;
    waiting.swap(queue_);
  }
  std::deque<std::shared_ptr<Call>> left;
  for (auto& call : waiting) {
    try {
      if (call->gone_) {
        GenerateResult nothing;
        nothing.reason = FinishReason::kCancelled;
        call->finish(std::move(nothing));
        continue;
      }
      auto place = call->place_ ? call->place_ : place_for(call->prompt_);
      if (!place && pool_.empty()) throw Error(no_session());  // none will be free
      if (!place || place->busy) {
        left.push_back(std::move(call));
        continue;
      }
      if (!place->session || place->ending) throw Error("this session is closed");
      if (!batch_) batch_ = engine_->batch();
      call->listen();
      batch_->add({place->session.get(), call->prompt_, &call->options_});
      call->place_ = place;
      place->busy = true;
      running_.push_back(std::move(call));
    } catch (...) { call->fail(std::current_exception()); }
  }
  if (left.empty()) return;
  const std::lock_guard lock(mutex_);
  queue_.insert(queue_.begin(), left.begin(), left.end());
}

void Runner::step() {
  if (running_.empty()) return;
  std::exception_ptr broken;
  std::vector<Finished> finished;
  try {
    batch_->step();
    finished = batch_->take_finished();
  } catch (...) { broken = std::current_exception(); }
  if (broken) {  // the batch cannot be used any more, its sessions can
    batch_.reset();
    for (const auto& call : std::exchange(running_, {})) call->place_->busy = false, call->fail(broken);
    return;
  }
  for (Finished& one : finished) {
    const auto at = std::find_if(running_.begin(), running_.end(),
                                 [&](const auto& call) { return call->place_->session.get() == one.session; });
    const std::shared_ptr<Call> call = *at;
    running_.erase(at);
    call->place_->busy = false;
    if (call->place_->ending) end_session(*call->place_);
    if (one.error.empty()) call->finish(std::move(one.result));
    else call->fail(std::make_exception_ptr(Error(one.error)));
  }
}

}  // namespace sx::python
