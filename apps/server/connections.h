// All connections that are open, and what each waits for. A connection that waits for its client (for a request, or for
// what was written to be read) can be cut off from here: to make room for another one, or because the server ends.
#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <unordered_map>

namespace sx::server {

struct ConnectionBounds {
  size_t all = 8192;
  size_t per_address = 8192;
};

class Connections {
 public:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    const std::string address;               // of the client, without its port
    const std::function<void()> cut;         // may be called by any thread, also after the connection has ended
    bool blocked = true;                     // it waits for its client
    bool asked = false;                      // it has the head of a request that is not yet answered
    bool ending = false;                     // it was cut off for another one
    Clock::time_point since = Clock::now();  // it is open, was last asked or has last answered, or cannot write
  };
  using Handle = std::list<Entry>::iterator;

  explicit Connections(const ConnectionBounds& bounds) : bounds_(bounds) {}

  // Whether a connection of the address may be taken. Where there are too many, others are cut off for it: of the
  // address that has most connections waiting for their client, those that have waited longest. An address that has all
  // it may have gives up its own; kNever: it has none to give up. kLater: all are being answered.
  enum class Room { kYes, kLater, kNever };
  Room room(const std::string& address);
  void make_room();  // where the process may not open more files

  Handle add(const std::string& address, std::function<void()> cut);
  void remove(Handle entry);
  void set_blocked(Handle entry, bool blocked);
  void set_asked(Handle entry, bool asked);
  void set_writing(Handle entry, bool writing);  // counts from now as the time that its client does not read

  // From now on connections end with the answer they are at, and those without a request are cut off.
  void begin_ending();
  bool ending() const;
  bool wait_until_none(Clock::time_point end);
  size_t size() const;

 private:
  bool shed(const std::string* address, size_t count);

  const ConnectionBounds bounds_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Entry> all_;
  std::unordered_map<std::string, size_t> addresses_;  // connections of each
  size_t shed_ = 0;                                    // that were cut off and are still there
  bool ending_ = false;
};

}  // namespace sx::server
