// The sockets of clients. The HTTP library does not show them, neither while a handler waits nor between requests, so they are
// looked up among the descriptors of the process by the client's address.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace sx::server {

class ClientSocket {
 public:
  ClientSocket(const std::string& address, int port);
  bool gone() const;     // closed by the client; false when not known
  void hang_up() const;  // what was written still arrives; what was not read is dropped
 private:
  int descriptor_ = -1;
};

// Cuts off clients that keep a connection busy without ever finishing a request: one that sends its headers or its body byte by
// byte would hold a thread for good, because the HTTP library only bounds the time between two bytes.
class SlowClients {
 public:
  using Client = std::pair<std::string, int>;  // address and port

  explicit SlowClients(std::chrono::milliseconds patience) : patience_(patience) {}
  ~SlowClients() { stop(); }
  // Clients of this port of ours, from now on.
  void watch(int port);
  // A request is being answered: its client may be slow.
  void begin(const Client& client);
  void end(const Client& client);
  // Cuts off whoever is not being answered, and watches no more.
  void stop();

 private:
  struct Seen {
    std::chrono::steady_clock::time_point since{};  // it last ended a request, or was first seen
    int answering = 0;
    bool there = true;                              // at the last look
  };
  void look(std::chrono::milliseconds patience);

  const std::chrono::milliseconds patience_;
  int port_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Client, Seen> clients_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace sx::server
