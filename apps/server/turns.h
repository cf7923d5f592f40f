// Work that alternates with the thread that owns it: it runs on a thread of its own, but only while the owner waits for
// it, so the two may use the same things without locks. The worker copies states of sessions so, a piece between two
// steps of the model.
#pragma once
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <istream>
#include <mutex>
#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>
#include <thread>

namespace sx::server {

class Turns {
 public:
  // Nothing runs before the first go_on().
  explicit Turns(std::function<void(Turns&)> work);
  ~Turns();  // lets the work run to its end
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // For the owner: the work goes on until it has ended (true) or pauses after at least this time. Where no thread can
  // be made, it runs to its end on the owner's.
  bool go_on(std::chrono::microseconds time);
  std::exception_ptr failure() const { return failure_; }  // what ended the work, if anything was thrown

  // For the work: hands over if its time is up; returns when it may go on.
  void pause();

 private:
  void run();

  const std::function<void(Turns&)> work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool working_ = false, ended_ = false;
  std::chrono::steady_clock::time_point until_{};
  std::exception_ptr failure_;
  std::thread thread_;
};

// A stream into memory that is taken once. Pauses between writes where there are turns.
class StateWriter : private std::streambuf {
 public:
  StateWriter(size_t bytes, Turns* turns);
  std::ostream& stream() { return stream_; }
  std::string take() { return std::move(bytes_); }

 private:
  std::streamsize xsputn(const char* from, std::streamsize count) override;
  int_type overflow(int_type c) override;

  std::string bytes_;
  Turns* const turns_;
  std::ostream stream_{this};
};

// A stream from memory that stays where it is. Pauses between reads where there are turns.
class StateReader : private std::streambuf {
 public:
  StateReader(std::string_view bytes, Turns* turns);
  std::istream& stream() { return stream_; }
  bool at_end() const { return gptr() == egptr(); }

 private:
  std::streamsize xsgetn(char* to, std::streamsize count) override;

  Turns* const turns_;
  std::istream stream_{this};
};

}  // namespace sx::server
