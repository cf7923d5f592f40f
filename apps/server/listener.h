// Where connections come from: a socket that listens, and the few threads on which all connections live.
#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "server/connections.h"

namespace sx::server {

class HttpSide;

struct ListenerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                          // 0: any free one
  std::string cert_file{}, key_file{};      // TLS; empty: without
  ConnectionBounds connections{};           // at a time; fewer where the process may not open so many files
  std::chrono::seconds request{30};         // most time a client may take to send a request
  size_t bodies_bytes = size_t(256) << 20;  // that bodies may take in memory, all together; of one owner half of it
  size_t waiting = 2048;                    // requests in a lane of the workers; of one owner half as many
};

class Listener {
 public:
  // The side must outlive it. Throws sx::Error where the files of TLS are none.
  static std::unique_ptr<Listener> create(const ListenerOptions& options, HttpSide& side);
  virtual ~Listener() = default;
  virtual int bind() = 0;     // the port; throws sx::Error when it cannot be had
  virtual void listen() = 0;  // until stop()
  // From other threads. drain() takes no more connections, and waits at most so long until those that are there have
  // their answers.
  virtual void drain(std::chrono::seconds most) = 0;
  virtual void stop() = 0;
  virtual size_t connections() const = 0;
};

}  // namespace sx::server
