// The bytes of a connection, plain or through TLS. Nothing here waits: sockets do not block, and whoever reads or
// writes asks again when the socket is ready.
#pragma once
#include <sys/types.h>

#include <functional>
#include <memory>

namespace sx::server {

class Wire {
 public:
  struct Moved {
    ssize_t bytes = 0;  // 0: the client's end
    short wait_for =
        0;  // POLLIN or POLLOUT: nothing moved, ask again then; bytes is -1. 0 with -1: the connection is broken
  };
  virtual ~Wire() = default;
  virtual Moved read(char* into, size_t size) = 0;
  virtual Moved write(const char* from, size_t size) = 0;
  virtual void say_goodbye() {}
};

using WireMaker = std::function<std::unique_ptr<Wire>(int socket)>;  // null: there is not enough memory

std::unique_ptr<Wire> make_plain_wire(int socket);

}  // namespace sx::server
