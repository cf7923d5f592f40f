#include "server/connections.h"

#include <netdb.h>
#include <sys/socket.h>

#include <charconv>
#include <cstring>
#include <map>

namespace sx::server {
namespace {

// What a connection may take before it is cut off for another one: until its client sends a head, and then a body or
// reads.
constexpr auto kHeaderDeadline = std::chrono::milliseconds(200), kDeadline = std::chrono::milliseconds(2000);

// Its thread wakes up, sees the end and closes it.
void cut(const Connections::Entry& entry) { ::shutdown(entry.socket, SHUT_RDWR); }

}  // namespace

std::pair<std::string, int> end_of(int socket, int (*which)(int, sockaddr*, unsigned*)) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST], service[NI_MAXSERV];
  if (which(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof(host), service, sizeof(service),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {{}, -1};
  int port = -1;
  std::from_chars(service, service + std::strlen(service), port);
  return {host, port};
}

Connections::Handle Connections::add(int socket) {
  std::string address = end_of(socket, ::getpeername).first;
  const std::lock_guard lock(mutex_);
  return all_.insert(all_.end(), Entry{.socket = socket, .address = std::move(address)});
}

void Connections::remove(Handle entry) {
  const std::lock_guard lock(mutex_);
  all_.erase(entry);
  changed_.notify_all();
}

void Connections::block_reading(Handle entry) {
  const std::lock_guard lock(mutex_);
  entry->blocked = true;
  if (cutting_) cut(*entry);
}

void Connections::block_writing(Handle entry) {
  const std::lock_guard lock(mutex_);
  entry->blocked = true;
  entry->since = Clock::now();
  if (cutting_) cut(*entry);
}

void Connections::unblock(Handle entry) {
  const std::lock_guard lock(mutex_);
  entry->blocked = false;
}

void Connections::set_asked(Handle entry, bool asked) {
  const std::lock_guard lock(mutex_);
  entry->asked = asked;
  entry->since = Clock::now();
}

bool Connections::shed() {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  struct Address {
    int count = 0;
    Entry* oldest = nullptr;
  };
  std::map<std::string, Address> addresses;
  for (Entry& entry : all_) {
    if (!entry.blocked || now - entry.since < (entry.asked ? kDeadline : kHeaderDeadline)) continue;
    Address& address = addresses[entry.address];
    ++address.count;
    if (!address.oldest || entry.since < address.oldest->since) address.oldest = &entry;
  }
  const Address* most = nullptr;
  for (const auto& [name, address] : addresses)
    if (!most || address.count > most->count) most = &address;
  if (!most) return false;
  most->oldest->blocked = false;  // not twice
  cut(*most->oldest);
  return true;
}

void Connections::begin_ending() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  for (const Entry& entry : all_)
    if (!entry.asked) cut(entry);
}

bool Connections::ending() const {
  const std::lock_guard lock(mutex_);
  return ending_;
}

bool Connections::wait_until_none(Clock::time_point end) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, end, [&] { return all_.empty(); });
}

void Connections::cut_all() {
  const std::lock_guard lock(mutex_);
  cutting_ = true;
  for (const Entry& entry : all_)
    if (entry.blocked) cut(entry);
}

}  // namespace sx::server
