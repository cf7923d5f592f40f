#include "server/turns.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace sx::server {

using SteadyClock = std::chrono::steady_clock;

Turns::Turns(std::function<void(Turns&)> work) : work_(std::move(work)) {}

Turns::~Turns() {
  if (thread_.joinable()) {
    go_on(std::chrono::microseconds::max());
    thread_.join();
  }
}

bool Turns::go_on(std::chrono::microseconds time) {
  std::unique_lock lock(mutex_);
  if (ended_) return true;
  // A time that cannot be reckoned with stands for all of it.
  until_ = time > std::chrono::hours(1) ? SteadyClock::time_point::max() : SteadyClock::now() + time;
  working_ = true;
  if (thread_.joinable()) {
    changed_.notify_all();
  } else {
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::exception&) {  // there is none left: the owner does all of it now
      until_ = SteadyClock::time_point::max();
      lock.unlock();
      run();
      return true;
    }
  }
  changed_.wait(lock, [&] { return !working_; });
  return ended_;
}

void Turns::run() {
  std::exception_ptr failure;
  try {
    work_(*this);
  } catch (...) { failure = std::current_exception(); }
  const std::lock_guard end(mutex_);
  failure_ = failure;
  ended_ = true, working_ = false;
  changed_.notify_all();
}

void Turns::pause() {
  std::unique_lock lock(mutex_);
  if (SteadyClock::now() < until_) return;
  working_ = false;
  changed_.notify_all();
  changed_.wait(lock, [&] { return working_; });
}

StateWriter::StateWriter(size_t bytes, Turns* turns) : turns_(turns) { bytes_.reserve(bytes); }

std::streamsize StateWriter::xsputn(const char* from, std::streamsize count) {
  bytes_.append(from, size_t(count));
  if (turns_) turns_->pause();
  return count;
}

StateWriter::int_type StateWriter::overflow(int_type c) {
  if (!traits_type::eq_int_type(c, traits_type::eof())) bytes_ += traits_type::to_char_type(c);
  return traits_type::not_eof(c);
}

StateReader::StateReader(std::string_view bytes, Turns* turns) : turns_(turns) {
  char* begin = const_cast<char*>(bytes.data());  // never written: there is no put area
  setg(begin, begin, begin + bytes.size());
}

std::streamsize StateReader::xsgetn(char* to, std::streamsize count) {
  const std::streamsize n = std::min<std::streamsize>(count, egptr() - gptr());
  std::memcpy(to, gptr(), size_t(n));
  setg(eback(), gptr() + n, egptr());
  if (turns_) turns_->pause();
  return n;
}

}  // namespace sx::server
