#include "server/wire.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

namespace sx::server {
namespace {

class PlainWire final : public Wire {
 public:
  explicit PlainWire(int socket) : socket_(socket) {}
  Moved read(char* into, size_t size) override { return moved(::recv(socket_, into, size, 0), POLLIN); }
  Moved write(const char* from, size_t size) override {
    return moved(::send(socket_, from, size, MSG_NOSIGNAL), POLLOUT);
  }

 private:
  static Moved moved(ssize_t bytes, short wait_for) {
    const bool again = bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    return {bytes, again ? wait_for : short(0)};
  }
  const int socket_;
};

}  // namespace

std::unique_ptr<Wire> make_plain_wire(int socket) { return std::make_unique<PlainWire>(socket); }

}  // namespace sx::server
