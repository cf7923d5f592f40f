#include "comm/rank_monitor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace sx {
namespace {

using namespace std::chrono_literals;
constexpr auto kBeat = 500ms;
constexpr auto kMeet = 30s;      // until all have connected
constexpr auto kConnect = 3000;  // ms for one address
constexpr char kAlive = 'a', kBye = 'q', kGivenUp = 'x';

struct Greeting {
  uint64_t secret[2];
  int32_t rank;
};

bool read_all(int socket, void* to, size_t count, int ms) {
  auto* at = static_cast<char*>(to);
  while (count > 0) {
    pollfd wait{socket, POLLIN, 0};
    if (::poll(&wait, 1, ms) <= 0) return false;
    const ssize_t got = ::recv(socket, at, count, 0);
    if (got <= 0) return false;
    at += got, count -= size_t(got);
  }
  return true;
}

int open_socket() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) fail("ranks cannot watch each other: {}", std::strerror(errno));
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return socket;
}

bool connect_within(int socket, uint32_t address, uint16_t port) {
  sockaddr_in to{};
  to.sin_family = AF_INET, to.sin_addr.s_addr = address, to.sin_port = htons(port);
  ::fcntl(socket, F_SETFL, O_NONBLOCK);
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
    if (errno != EINPROGRESS) return false;
    pollfd wait{socket, POLLOUT, 0};
    int error = 0;
    socklen_t size = sizeof error;
    if (::poll(&wait, 1, kConnect) <= 0 || ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0)
      return false;
  }
  ::fcntl(socket, F_SETFL, 0);
  return true;
}

}  // namespace

RankMonitor::RankMonitor(int rank, int size, Options options) : rank_(rank), size_(size), options_(std::move(options)) {
  ::gethostname(place_.host, sizeof place_.host - 1);
  place_.process = int32_t(::getpid());
  if (rank_ == 0 && size_ > 1) listen();
}

RankMonitor::~RankMonitor() {
  {
    const std::lock_guard hold(lock_);
    for (Peer& peer : peers_)
      if (!lost_) send(peer, kBye);
  }
  quit_ = true;
  if (thread_.joinable()) thread_.join();
  for (const Peer& peer : peers_) ::close(peer.socket);
  if (listener_ >= 0) ::close(listener_);
}

void RankMonitor::listen() {
  listener_ = open_socket();
  sockaddr_in any{};
  any.sin_family = AF_INET, any.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof any;
  if (::bind(listener_, reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 || ::listen(listener_, size_) != 0 ||
      ::getsockname(listener_, reinterpret_cast<sockaddr*>(&any), &size) != 0)
    fail("ranks cannot watch each other: {}", std::strerror(errno));
  place_.port = ntohs(any.sin_port);
  if (::getrandom(place_.secret, sizeof place_.secret, 0) != ssize_t(sizeof place_.secret))
    fail("ranks cannot watch each other: no random numbers");
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return;
  size_t count = 0;
  for (const ifaddrs* one = all; one && count < std::size(place_.addresses); one = one->ifa_next)
    if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET) {
      const uint32_t address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr.s_addr;
      if (address != htonl(INADDR_LOOPBACK)) place_.addresses[count++] = address;
    }
  ::freeifaddrs(all);
}

std::string RankMonitor::describe(int rank) const {
  if (rank < 0 || size_t(rank) >= places_.size()) return fmt::format("rank {}", rank);
  const MonitorPlace& place = places_[size_t(rank)];
  return fmt::format("rank {} ({}, process {})", rank, place.host, place.process);
}

void RankMonitor::connect(const std::vector<MonitorPlace>& places) {
  places_ = places;
  if (size_ == 1) return;
  rank_ == 0 ? accept_all() : connect_to_first();
  thread_ = std::thread([this] { watch(); });
}

void RankMonitor::accept_all() {
  const auto until = Clock::now() + kMeet;
  std::vector<bool> there(size_t(size_), false);
  while (int(peers_.size()) < size_ - 1) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    pollfd wait{listener_, POLLIN, 0};
    if (left <= 0ms || ::poll(&wait, 1, int(left.count())) <= 0) {
      for (int r = 1; r < size_; ++r)
        if (!there[size_t(r)]) fail("{} has not connected to rank 0, port {}: a firewall?", describe(r), place_.port);
    }
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) continue;
    Greeting said{};
    const bool known = read_all(socket, &said, sizeof said, 2000) &&
                       std::memcmp(said.secret, place_.secret, sizeof said.secret) == 0 && said.rank > 0 &&
                       said.rank < size_ && !there[size_t(said.rank)];
    if (!known || ::send(socket, &kAlive, 1, MSG_NOSIGNAL) != 1) {
      ::close(socket);
      continue;
    }
    there[size_t(said.rank)] = true;
    peers_.push_back({.rank = said.rank, .socket = socket, .gone = false, .unread = {}, .heard = Clock::now()});
  }
}

void RankMonitor::connect_to_first() {
  const MonitorPlace& first = places_[0];
  std::vector<uint32_t> addresses;
  if (std::strcmp(first.host, place_.host) == 0) addresses.push_back(htonl(INADDR_LOOPBACK));
  for (const uint32_t address : first.addresses)
    if (address != 0) addresses.push_back(address);
  for (const uint32_t address : addresses) {
    const int socket = open_socket();
    Greeting said{{first.secret[0], first.secret[1]}, rank_};
    char answer = 0;
    if (connect_within(socket, address, first.port) &&
        ::send(socket, &said, sizeof said, MSG_NOSIGNAL) == ssize_t(sizeof said) &&
        read_all(socket, &answer, 1, kConnect)) {
      peers_.push_back({.rank = 0, .socket = socket, .gone = false, .unread = {}, .heard = Clock::now()});
      return;
    }
    ::close(socket);
  }
  fail("{} cannot connect to {}, port {}: a firewall?", describe(rank_), describe(0), first.port);
}

std::string RankMonitor::reason() const {
  const std::lock_guard hold(lock_);
  return reason_;
}

// A message is a letter; behind kGivenUp follow the reason and a zero. The sockets' buffers are never full: a peer that
// has not read for so long is lost.
void RankMonitor::send(Peer& peer, char kind, const std::string& text) {
  std::string message(1, kind);
  if (kind == kGivenUp) message += text + '\0';
  if (!peer.gone) static_cast<void>(::send(peer.socket, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

void RankMonitor::give_up(const std::string& why) noexcept {
  try {
    lose(why);
  } catch (const std::exception&) {}
}

void RankMonitor::lose(const std::string& why) {
  const std::lock_guard hold(lock_);
  if (lost_) return;
  reason_ = why;
  for (Peer& peer : peers_) send(peer, kGivenUp, why);
  lost_ = true;
}

void RankMonitor::read(Peer& peer) {
  char bytes[256];
  const ssize_t got = ::recv(peer.socket, bytes, sizeof bytes, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (got <= 0) {
    if (!peer.gone) lose(describe(peer.rank) + " has ended without a word");
    peer.gone = true;
    return;
  }
  peer.heard = Clock::now();
  peer.unread.append(bytes, size_t(got));
  for (;;) {
    if (peer.unread.empty()) return;
    if (peer.unread.front() == kGivenUp) {
      const size_t end = peer.unread.find('\0');
      if (end == std::string::npos) return;
      lose(peer.unread.substr(1, end - 1));
      peer.unread.erase(0, end + 1);
      continue;
    }
    if (peer.unread.front() == kBye) peer.gone = true;
    peer.unread.erase(0, 1);
  }
}

void RankMonitor::watch() {
  auto beat = Clock::now(), looked = beat;
  Clock::time_point lost_at{};
  const auto seconds = [](double s) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
  };
  while (!quit_) {
    std::vector<pollfd> waits;
    for (const Peer& peer : peers_) waits.push_back({peer.gone ? -1 : peer.socket, POLLIN, 0});
    ::poll(waits.data(), waits.size(), 50);
    for (size_t i = 0; i < peers_.size(); ++i)
      if (waits[i].revents != 0) read(peers_[i]);
    const auto now = Clock::now();
    if (now - looked > 2s)  // this process itself was stopped: it has not listened
      for (Peer& peer : peers_) peer.heard = now;
    looked = now;
    for (const Peer& peer : peers_)
      if (!peer.gone && now - peer.heard > seconds(options_.silence_seconds))
        lose(fmt::format("{} has not been heard of for {} s: stopped, hanging or cut off", describe(peer.rank),
                         options_.silence_seconds));
    // Rank 0 dismisses the others before it leaves; who is still there then has missed it.
    if (rank_ != 0 && peers_[0].gone && now - peers_[0].heard > seconds(options_.silence_seconds))
      lose(describe(0) + " has left");
    if (now - beat >= kBeat && !lost_) {
      const std::lock_guard hold(lock_);
      for (Peer& peer : peers_) send(peer, kAlive);
      beat = now;
    }
    if (!lost_) continue;
    if (lost_at == Clock::time_point{}) lost_at = now;
    if (now - lost_at < seconds(options_.grace_seconds)) continue;
    if (options_.on_lost) options_.on_lost(reason());
    return;
  }
}

}  // namespace sx
