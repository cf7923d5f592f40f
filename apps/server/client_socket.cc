#include "server/client_socket.h"

#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <vector>

namespace sx::server {
namespace {

using Name = int(int, sockaddr*, socklen_t*);

// What getpeername or getsockname says; a port of -1: nothing.
SlowClients::Client address_of(int descriptor, Name* name) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (name(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {{}, -1};
  char host[NI_MAXHOST], service[NI_MAXSERV];
  if (::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof(host), service, sizeof(service),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {{}, -1};
  int port = -1;
  std::from_chars(service, service + sizeof(service), port);
  return {host, port};
}

std::vector<int> descriptors() {
  std::vector<int> all;
  std::error_code failed;
  for (std::filesystem::directory_iterator it("/proc/self/fd", failed), end; !failed && it != end; it.increment(failed)) {
    const std::string name = it->path().filename().string();
    int descriptor = -1;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    all.push_back(descriptor);
  }
  return all;
}

// It has sent something, and nothing of it has been read: it waits for a thread.
bool is_waiting(int descriptor) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  int unread = 0;
  return ::ioctl(descriptor, FIONREAD, &unread) == 0 && unread > 0 &&
         ::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_bytes_received == uint64_t(unread);
}

}  // namespace

ClientSocket::ClientSocket(const std::string& address, int port) {
  for (int descriptor : descriptors())
    if (address_of(descriptor, ::getpeername) == SlowClients::Client(address, port)) {
      descriptor_ = descriptor;
      return;
    }
}

// Not by reading: with TLS the client's farewell would lie in front of the end.
bool ClientSocket::gone() const {
  if (descriptor_ < 0) return false;
  pollfd asked{descriptor_, POLLRDHUP, 0};
  return ::poll(&asked, 1, 0) > 0 && (asked.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

void ClientSocket::hang_up() const {
  if (descriptor_ < 0) return;
  ::shutdown(descriptor_, SHUT_RDWR);
  char dropped[4096];
  while (::recv(descriptor_, dropped, sizeof(dropped), MSG_DONTWAIT) > 0) {}
}

void SlowClients::watch(int port) {
  port_ = port;
  thread_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    const auto pause = std::clamp<std::chrono::milliseconds>(patience_ / 4, std::chrono::milliseconds(20), std::chrono::seconds(1));
    while (!changed_.wait_for(lock, pause, [&] { return ending_; })) look(patience_);
    look({});
  });
}

void SlowClients::begin(const Client& client) {
  const std::lock_guard lock(mutex_);
  ++clients_[client].answering;
}

void SlowClients::end(const Client& client) {
  const std::lock_guard lock(mutex_);
  Seen& seen = clients_[client];
  seen.answering = std::max(0, seen.answering - 1);
  seen.since = std::chrono::steady_clock::now();
}

void SlowClients::stop() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void SlowClients::look(std::chrono::milliseconds patience) {
  const auto now = std::chrono::steady_clock::now();
  for (auto& [client, seen] : clients_) seen.there = false;
  for (int descriptor : descriptors()) {
    if (address_of(descriptor, ::getsockname).second != port_) continue;
    const Client client = address_of(descriptor, ::getpeername);
    if (client.second < 0) continue;  // the listening one
    Seen& seen = clients_[client];
    seen.there = true;
    if (seen.since == std::chrono::steady_clock::time_point() || is_waiting(descriptor)) seen.since = now;
    // Asked again: its thread may have closed it, and the number may be another client's by now.
    const bool slow = seen.answering == 0 && now - seen.since >= patience;
    if (slow && address_of(descriptor, ::getpeername) == client) ::shutdown(descriptor, SHUT_RDWR);
  }
  std::erase_if(clients_, [](const auto& entry) { return !entry.second.there; });
}

}  // namespace sx::server
