// All connections that are open, and what each waits for. A connection that waits for its client (for a request, or for
// what was written to be read) can be cut off from here: to make room for another one, or because the server ends.
#pragma once
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <string>
#include <utility>

struct sockaddr;

namespace sx::server {

// An end of a socket, by getpeername or getsockname: its numeric address and its port; a port of -1: not known.
std::pair<std::string, int> end_of(int socket, int (*which)(int, sockaddr*, unsigned*));

class Connections {
 public:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    const int socket;
    const std::string address;               // of the client, without its port
    bool blocked = false;                    // it waits for its client
    bool asked = false;                      // it has the head of a request that is not yet answered
    Clock::time_point since = Clock::now();  // it is open, was last asked or has last answered, or cannot write
  };
  using Handle = std::list<Entry>::iterator;

  Handle add(int socket);
  // Before the socket is closed, so that its number is nobody else's.
  void remove(Handle entry);
  void block_reading(Handle entry);
  void block_writing(Handle entry);
  void unblock(Handle entry);
  void set_asked(Handle entry, bool asked);

  // Cuts off a connection that waits for its client: of the address that has most of those, the one that has waited
  // longest. False: there is none.
  bool shed();

  // From now on connections end with the answer they are at, and those without a request are cut off.
  void begin_ending();
  bool ending() const;
  bool wait_until_none(Clock::time_point end);
  void cut_all();  // that wait for their clients, now or later

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Entry> all_;
  bool ending_ = false, cutting_ = false;
};

}  // namespace sx::server
