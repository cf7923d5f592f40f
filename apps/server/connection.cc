#include "server/connection.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <tuple>
#include <utility>

#include "server/replies.h"
#include "server/response.h"

namespace sx::server {
namespace {

using namespace std::chrono_literals;

constexpr size_t kPiece = 16384;  // bytes read at a time
constexpr auto kLinger = 2s;      // for the answer to arrive where the client still sends
constexpr size_t kLingerBytes = size_t(64) << 20;
constexpr auto kProbe = 1s;       // between the end of a client's side and an interim response
constexpr auto kProbeAgain = 5s;  // between two of them
constexpr std::string_view kInterim = "HTTP/1.1 100 Continue\r\n\r\n";
// Who vanished without a word is found out after about a minute.
constexpr int kKeepIdle = 30, kKeepInterval = 10, kKeepCount = 3;

// Headers the library must not act on: the connection is ours to keep or to end, a body is JSON whatever it is called
// (the library would take forms apart, and refuse those of more than 8 KiB), and a list of ranges can ask for one file
// thousands of times.
constexpr std::array<std::string_view, 11> kOurs{"connection", "keep-alive", "proxy-connection", "transfer-encoding",
                                                 "te",         "trailer",    "upgrade",          "expect",
                                                 "range",      "if-range",   "content-type"};

thread_local Connection* t_current = nullptr;

const char* reason(int status) {
  switch (status) {
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 414: return "URI Too Long";
    case 431: return "Request Header Fields Too Large";
    case 505: return "HTTP Version Not Supported";
    default: return "Bad Request";
  }
}

std::string shown(const RequestHead& head) {
  std::string text = fmt::format("{} {} HTTP/1.{}\r\n", head.method, head.target, head.old ? 0 : 1);
  for (const auto& [name, value] : head.headers)
    if (std::ranges::find(kOurs, name) == kOurs.end()) text += name + ": " + value + "\r\n";
  return text + "\r\n";
}

void prepare(int socket) {
  ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK);
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(socket, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdle);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepInterval);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepCount);
}

}  // namespace

Connection::Connection(int socket, std::unique_ptr<Wire> wire, Connections& all, const Deadlines& deadlines)
    : socket_(socket), all_(all), entry_(all.add(socket)), deadlines_(deadlines), wire_(std::move(wire)) {
  prepare(socket);
  t_current = this;
}

Connection::~Connection() {
  t_current = nullptr;
  if (!broken_) wire_->say_goodbye();
  ::shutdown(socket_, SHUT_WR);
  if (!over_) linger();
  all_.remove(entry_);
  ::close(socket_);
}

Connection& Connection::current() {
  assert(t_current);
  return *t_current;
}

bool Connection::next() {
  const bool first = !reader_.begun();
  all_.set_asked(entry_, false);
  if (broken_ || all_.ending()) return false;
  reader_ = {};
  auto end = Clock::now() + (first ? deadlines_.head : deadlines_.idle);
  for (bool heard = false;;) {
    if (!heard && !buffer_.empty()) {
      heard = true;
      end = Clock::now() + deadlines_.head;
      deadline_ = Clock::now() + deadlines_.request;
    }
    if (reader_.take(buffer_)) break;
    char piece[kPiece];
    const ssize_t got = fill(piece, sizeof(piece), end);
    if (got > 0) {
      buffer_.append(piece, size_t(got));
      continue;
    }
    if (late_ && heard) throw ApiError(408, "invalid_request_error", "the request's head did not come in time");
    over_ = true;
    return false;
  }
  all_.set_asked(entry_, true);
  shown_ = shown(head());
  shown_to_ = 0;
  left_ = head().length;
  wants_continue_ = !head().old && head().lists("expect", "100-continue");
  answered_ = half_closed_ = false;
  return true;
}

void Connection::refuse(const ApiError& error) {
  const std::string id = request_id({}),
                    body = error_body(error, id);  // the head may be broken: its own name is not looked for
  const char* allow = error.status == 405 ? "Allow: GET, HEAD, POST, OPTIONS\r\n" : "";
  send(fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}: {}\r\n{}Connection: close\r\n\r\n{}",
      error.status, reason(error.status), body.size(), kRequestId, id, allow, body));
}

bool Connection::gone() {
  pollfd asked{socket_, POLLRDHUP, 0};
  if (broken_) return true;
  if (::poll(&asked, 1, 0) <= 0) return false;
  if (asked.revents & (POLLHUP | POLLERR | POLLNVAL)) return true;
  const auto now = Clock::now();
  if (!std::exchange(half_closed_, true)) next_probe_ = now + kProbe;
  if (answered_ || head().old || now < next_probe_) return false;
  next_probe_ = now + kProbeAgain;
  return !send(kInterim);
}

ssize_t Connection::read(char* into, size_t size) {
  if (shown_to_ < shown_.size()) {
    size = shown_.copy(into, size, shown_to_);
    shown_to_ += size;
    return ssize_t(size);
  }
  size = std::min(size, left_);
  if (size == 0) return 0;
  if (!buffer_.empty()) {
    size = buffer_.copy(into, size);
    buffer_.erase(0, size);
  } else {
    if (std::exchange(wants_continue_, false)) send(kInterim);
    const ssize_t got = fill(into, size, deadline_);
    if (got <= 0) return got;
    size = size_t(got);
  }
  left_ -= size;
  return ssize_t(size);
}

// All or nothing: the library does not come back for the rest.
ssize_t Connection::write(const char* from, size_t size) {
  answered_ = true;
  return send({from, size}) ? ssize_t(size) : -1;
}

bool Connection::send(std::string_view text) {
  while (!broken_ && !text.empty()) {
    const Wire::Moved moved = wire_->write(text.data(), text.size());
    if (moved.bytes > 0) text.remove_prefix(size_t(moved.bytes));
    else broken_ = moved.wait_for == 0 || !wait(moved.wait_for, Clock::now() + deadlines_.write);
  }
  return !broken_;
}

ssize_t Connection::fill(char* into, size_t size, Clock::time_point end) {
  while (!broken_) {
    const Wire::Moved moved = wire_->read(into, size);
    if (moved.bytes >= 0) return moved.bytes;
    if (moved.wait_for == 0) broken_ = true;
    else if (!wait(moved.wait_for, end)) {
      late_ = true;
      return -1;
    }
  }
  return -1;
}

bool Connection::wait(short events, Clock::time_point end) {
  if (events & POLLOUT) all_.block_writing(entry_);
  else all_.block_reading(entry_);
  pollfd asked{socket_, events, 0};
  int ready = -1;
  do {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    ready = left > 0 ? ::poll(&asked, 1, int(left)) : 0;
  } while (ready < 0 && errno == EINTR);
  all_.unblock(entry_);
  return ready > 0;
}

// What the client still sends is dropped, because closing a socket with something unread in it would take back the
// answer.
void Connection::linger() {
  const auto end = Clock::now() + (all_.ending() && !unread() ? 0s : kLinger);
  char dropped[kPiece];
  for (size_t sum = 0; sum < kLingerBytes;) {
    const ssize_t got = ::recv(socket_, dropped, sizeof(dropped), 0);
    const bool again = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    if (got > 0) sum += size_t(got);
    else if (!again || !wait(POLLIN, end)) return;
    if (Clock::now() >= end) return;
  }
}

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  std::tie(ip, port) = end_of(socket_, ::getpeername);
}

void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  std::tie(ip, port) = end_of(socket_, ::getsockname);
}

}  // namespace sx::server
