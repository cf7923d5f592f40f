#include "server/client_socket.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>

namespace sx::server {
namespace {

bool is_peer(int descriptor, const std::string& address, int port) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return false;
  char host[NI_MAXHOST], service[NI_MAXSERV];
  if (::getnameinfo(reinterpret_cast<sockaddr*>(&peer), size, host, sizeof(host), service, sizeof(service),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return false;
  return address == host && std::to_string(port) == service;
}

}  // namespace

ClientSocket::ClientSocket(const std::string& address, int port) {
  std::error_code failed;
  for (std::filesystem::directory_iterator it("/proc/self/fd", failed), end; !failed && it != end; it.increment(failed)) {
    const std::string name = it->path().filename().string();
    int descriptor = -1;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    if (is_peer(descriptor, address, port)) {
      descriptor_ = descriptor;
      return;
    }
  }
}

bool ClientSocket::gone() const {
  if (descriptor_ < 0) return false;
  char byte;
  const ssize_t got = ::recv(descriptor_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void ClientSocket::hang_up() const {
  if (descriptor_ < 0) return;
  ::shutdown(descriptor_, SHUT_RDWR);
  char dropped[4096];
  while (::recv(descriptor_, dropped, sizeof(dropped), MSG_DONTWAIT) > 0) {}
}

}  // namespace sx::server
