#include "server/connection.h"

#include <fmt/format.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/beast/http/status.hpp>
#include <utility>

#include "server/target.h"

namespace sx::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using namespace std::chrono_literals;

constexpr size_t kPiece = 2048, kBodyPiece = 65536;  // bytes read at a time
constexpr size_t kAhead = 65536;                     // bytes read of requests that must wait for the one before
constexpr size_t kSmallBody = 65536;                 // taken even where bodies take all the room they may
constexpr int kRequests = 100;                       // of one connection
constexpr auto kLinger = 2s;                         // for the answer to arrive where the client still sends
constexpr size_t kLingerBytes = size_t(64) << 20;
constexpr auto kProbe = 1s;  // between the end of a client's side and an interim response, or two of a stream's signs
constexpr auto kProbeAgain = 5s;  // between two interim responses
constexpr std::string_view kInterim = "HTTP/1.1 100 Continue\r\n\r\n";
// Who vanished without a word is found out after about a minute.
constexpr int kKeepIdle = 30, kKeepInterval = 10, kKeepCount = 3;

void prepare(Wire::Socket& socket) {
  Wire::Error ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const auto set = [&](int option, int value) {
    ::setsockopt(socket.native_handle(), IPPROTO_TCP, option, &value, sizeof(value));
  };
  set(TCP_KEEPIDLE, kKeepIdle);
  set(TCP_KEEPINTVL, kKeepInterval);
  set(TCP_KEEPCNT, kKeepCount);
}

bool is_end(const Wire::Error& error) {
  return error == asio::error::eof || error == asio::ssl::error::stream_truncated;
}

ApiError no_room(const std::string& message) { return {503, "unavailable_error", message, "", "overloaded"}; }

}  // namespace

// A request on its way through a handler. Its body counts as room that is taken.
struct Connection::Exchange {
  explicit Exchange(BodyRoom& all) : bodies(all) {}
  ~Exchange() { drop_body(); }
  void drop_body() {
    if (counted > 0) bodies.remove(owner, std::exchange(counted, 0));
    std::string().swap(request.body);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  BodyRoom& bodies;
  std::string owner{};  // of the body, and of the work on it
  size_t counted = 0;
  std::atomic<bool> gone{false};  // nobody waits for the reply
  HttpRequest request{};
  HttpReply reply{};
};

Connection::Connection(std::unique_ptr<Wire> wire, const std::string& address, ConnectionSurroundings& shared)
    : wire_(std::move(wire)), shared_(shared), address_(address), timer_(wire_->socket().get_executor()) {
  prepare(wire_->socket());
}

Connection::~Connection() {
  if (later_) later_->leave();
  if (phase_ != Phase::kClosed) shared_.all.remove(entry_);  // the server ends
}

void Connection::start() {
  std::weak_ptr<Connection> weak = weak_from_this();
  entry_ = shared_.all.add(address_, [weak] {
    if (const auto self = weak.lock()) asio::post(self->wire_->socket().get_executor(), [self] { self->gone(); });
  });
  asio::dispatch(wire_->socket().get_executor(), [self = shared_from_this()] {
    self->deadline_ = Clock::now() + self->shared_.deadlines.head;
    self->arm();
    self->wire_->begin([self](const Wire::Error& error) {
      if (self->phase_ != Phase::kHandshake) return;
      if (error) return self->close();
      self->enter(Phase::kHead);
      self->take_head();
    });
  });
}

void Connection::enter(Phase phase) {
  phase_ = phase;
  shared_.all.set_blocked(entry_, phase != Phase::kWork && phase != Phase::kAnswer);
}

void Connection::await_request() {
  shared_.all.set_asked(entry_, false);
  if (over_ || shared_.all.ending()) return hang_up();
  reader_ = {};
  heard_ = head_sent_ = finished_ = false;
  left_ = 0;
  reply_ = {};
  exchange_.reset();
  enter(Phase::kHead);
  deadline_ = Clock::now() + shared_.deadlines.idle;
  take_head();
}

void Connection::read_more() {
  const bool ahead = (phase_ == Phase::kWork || phase_ == Phase::kAnswer) && buffer_.size() >= kAhead;
  if (reading_ || over_ || phase_ == Phase::kClosed || (phase_ == Phase::kLinger && !hung_up_)) return;
  if (ahead) return watch_errors();
  const size_t size = phase_ == Phase::kBody || phase_ == Phase::kLinger ? kBodyPiece : kPiece;
  if (piece_.size() != size) std::string(size, '\0').swap(piece_);
  reading_ = true;
  const auto moved = [self = shared_from_this()](const Wire::Error& error, size_t n) { self->on_read(error, n); };
  if (phase_ == Phase::kLinger) wire_->socket().async_read_some(asio::buffer(piece_), moved);  // not decrypted
  else wire_->read(piece_.data(), piece_.size(), moved);
}

void Connection::on_read(const Wire::Error& error, size_t size) {
  reading_ = false;
  if (phase_ == Phase::kClosed) return;
  if (error == asio::error::operation_aborted) return read_more();  // by a goodbye
  if (is_end(error)) return on_end();
  if (error) return phase_ == Phase::kLinger ? close() : gone();
  if (phase_ == Phase::kLinger) {
    dropped_ += size;
    return dropped_ > kLingerBytes ? close() : read_more();
  }
  buffer_.append(piece_, 0, size);
  if (phase_ == Phase::kHead) take_head();
  else if (phase_ == Phase::kBody) take_body();
  else read_more();
}

void Connection::on_end() {
  over_ = true;
  switch (phase_) {
    case Phase::kBody: return refuse(bad_request("the body ended before its Content-Length"));
    case Phase::kWork:
    case Phase::kAnswer:  // it may still read; whether it does can only be found out by writing
      probe_ = Clock::now() + kProbe;
      watch_errors();
      return arm();
    case Phase::kLinger: return close();
    default: return hang_up();
  }
}

// Who resets the connection is noticed although nothing is read.
void Connection::watch_errors() {
  wire_->socket().async_wait(Wire::Socket::wait_error, [self = shared_from_this()](const Wire::Error& error) {
    if (!error && self->phase_ != Phase::kClosed) self->gone();
  });
}

void Connection::take_head() {
  if (!heard_ && !buffer_.empty()) {
    heard_ = true;
    deadline_ = Clock::now() + shared_.deadlines.head;
    request_deadline_ = Clock::now() + shared_.deadlines.request;
  }
  arm();
  exchange_ = std::make_shared<Exchange>(shared_.bodies);
  try {
    if (!reader_.take(buffer_)) {
      exchange_.reset();
      return read_more();
    }
  } catch (const ApiError& error) { return refuse(error); }
  const RequestHead& head = reader_.head;
  shared_.all.set_asked(entry_, true);
  asked_at_ = Clock::now();
  ++served_;
  HttpRequest& request = exchange_->request;
  request.method = head.method;
  request.headers = head.headers;
  read_target(head.target, request);
  left_ = head.length;
  const HttpSide::Admission admission = shared_.side.admit(head, request, reply_);
  if (admission.refused) return send_whole();
  lane_ = admission.lane;
  exchange_->owner = admission.owner.empty() ? "the address " + address_ : admission.owner;
  exchange_->reply = std::exchange(reply_, {});
  if (!head.old && left_ > buffer_.size() && head.lists("expect", "100-continue")) write(kInterim);
  enter(Phase::kBody);
  deadline_ = request_deadline_;
  arm();
  take_body();
}

void Connection::take_body() {
  const size_t here = std::min(left_, buffer_.size());
  exchange_->request.body.append(buffer_, 0, here);
  buffer_.erase(0, here);
  left_ -= here;
  exchange_->counted += here;
  const BodyRoom::Room room = shared_.bodies.add(exchange_->owner, here);
  if (room == BodyRoom::Room::kShareFull && exchange_->counted > kSmallBody)
    return refuse(no_room(fmt::format("the bodies of {} take more than half of the room for all", exchange_->owner)));
  if (room == BodyRoom::Room::kFull && exchange_->counted > kSmallBody)
    return refuse(no_room("the bodies of other requests take all the room there is"));
  if (left_ > 0) return read_more();
  hand_over();
}

void Connection::hand_over() {
  enter(Phase::kWork);
  read_more();  // beside the answer
  if (!lane_) {
    shared_.side.handle(exchange_->request, exchange_->reply);
    return answer(exchange_);
  }
  try {
    work_in(*lane_, exchange_);
  } catch (const ApiError& error) { refuse(error); }
}

// Any thread.
void Connection::work_in(Lane lane, const std::shared_ptr<Exchange>& exchange) {
  const auto work = [self = shared_from_this(), exchange] {
    HttpReply& reply = exchange->reply;
    if (!exchange->gone) self->shared_.side.handle(exchange->request, reply);
    if (std::exchange(reply.takes_long, false)) try {
        return self->work_in(Lane::kLarge, exchange);
      } catch (const ApiError& error) { self->shared_.side.explain(exchange->request, reply, error); }
    asio::post(self->wire_->socket().get_executor(), [self, exchange] { self->answer(exchange); });
  };
  switch (shared_.workers.add(lane, exchange->owner, work)) {
    case Workers::Added::kYes: return;
    case Workers::Added::kFull: throw no_room("too many requests are being read: try again later");
    case Workers::Added::kShareFull:
      throw ApiError(429, "rate_limit_error",
                     fmt::format("{} has too many requests that are being read: try again later", exchange->owner), "",
                     kReadingQueueFull);
  }
}

void Connection::answer(const std::shared_ptr<Exchange>& done) {
  if (phase_ == Phase::kClosed) {
    if (done->reply.later) done->reply.later->leave();
    return;
  }
  reply_ = std::move(done->reply);
  done->drop_body();
  later_ = std::exchange(reply_.later, nullptr);
  if (!later_) return send_whole();
  enter(Phase::kAnswer);
  std::weak_ptr<Connection> weak = weak_from_this();
  later_->listen([weak] {
    const auto self = weak.lock();
    if (!self || self->rung_.exchange(true)) return;
    asio::post(self->wire_->socket().get_executor(), [self] {
      self->rung_ = false;
      self->poll();
    });
  });
  last_write_ = Clock::now();
  poll();
}

void Connection::poll() {
  if (phase_ != Phase::kAnswer || !later_ || writing_ || finished_) return;
  std::string piece;
  LaterReply::State state{};
  try {
    state = later_->next(reply_, piece);
  } catch (const ApiError& error) {
    shared_.side.explain(exchange_->request, reply_, error);
    return send_whole();
  } catch (const std::exception& e) {
    if (head_sent_) return gone();
    shared_.side.explain(exchange_->request, reply_, {500, "server_error", e.what(), "", "internal_error"});
    return send_whole();
  }
  if (state == LaterReply::State::kDone && !head_sent_ && piece.empty()) return send_whole();
  if (state == LaterReply::State::kWaiting) return arm();
  std::string text;
  if (!std::exchange(head_sent_, true)) {
    shared_.side.count(reply_.status);
    text = head_text(reader_.head.old ? "" : "Transfer-Encoding: chunked\r\n");
  }
  if (!piece.empty()) text += framed(piece);
  if (state == LaterReply::State::kDone) {
    finished_ = true;
    if (!reader_.head.old) text += "0\r\n\r\n";
  }
  if (text.empty()) return arm();
  write(text);
}

std::string Connection::framed(std::string_view piece) const {
  return reader_.head.old ? std::string(piece) : fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
}

void Connection::refuse(const ApiError& error) {
  if (phase_ == Phase::kHead) reader_.head = {};  // it may be broken: nothing of it is looked at
  last_ = true;
  exchange_->drop_body();
  shared_.side.explain(exchange_->request, reply_, error);
  if (error.status == 405) reply_.set_header("Allow", "GET, HEAD, POST, OPTIONS");
  send_whole();
}

void Connection::send_whole() {
  if (later_) std::exchange(later_, nullptr)->leave();
  shared_.side.count(reply_.status);
  enter(Phase::kAnswer);
  finished_ = head_sent_ = true;
  const bool none = reply_.status == 204;
  const std::string length = none ? std::string() : fmt::format("Content-Length: {}\r\n", reply_.body.size());
  std::string text = head_text(length.c_str());
  if (!none && reader_.head.method != "HEAD") text += reply_.body;
  std::string().swap(reply_.body);
  write(text);
}

std::string Connection::head_text(const char* framing) {
  const RequestHead& head = reader_.head;
  last_ = last_ || over_ || unread() || head.old || served_ >= kRequests || head.lists("connection", "close") ||
          shared_.all.ending();
  std::string text = fmt::format("HTTP/1.1 {} {}\r\n", reply_.status,
                                 std::string_view(http::obsolete_reason(http::int_to_status(unsigned(reply_.status)))));
  for (const auto& [name, value] : reply_.headers) text += fmt::format("{}: {}\r\n", name, value);
  text += framing;
  if (last_) return text + "Connection: close\r\n\r\n";
  return text + fmt::format("Keep-Alive: timeout={}, max={}\r\n\r\n",
                            std::chrono::duration_cast<std::chrono::seconds>(shared_.deadlines.idle).count(),
                            kRequests);
}

void Connection::write(std::string_view text) {
  out_ += text;
  last_write_ = Clock::now();
  pump();
}

void Connection::pump() {
  if (writing_ || phase_ == Phase::kClosed) return;
  if (sent_ == front_.size()) {
    front_ = std::exchange(out_, {});
    sent_ = 0;
    if (front_.empty()) return;
    shared_.all.set_writing(entry_, true);
  }
  writing_ = true;
  write_deadline_ = Clock::now() + shared_.deadlines.write;
  arm();
  wire_->write(front_.data() + sent_, front_.size() - sent_,
               [self = shared_from_this()](const Wire::Error& error, size_t n) { self->on_write(error, n); });
}

void Connection::on_write(const Wire::Error& error, size_t size) {
  writing_ = false;
  if (phase_ == Phase::kClosed) return;
  if (error) return gone();
  sent_ += size;
  if (sent_ < front_.size() || !out_.empty()) return pump();
  std::string().swap(front_);
  sent_ = 0;
  shared_.all.set_writing(entry_, phase_ == Phase::kHead || phase_ == Phase::kBody);
  if (finished_) return finish();
  poll();
  arm();
}

void Connection::log() {
  if (!exchange_ || exchange_->request.method.empty()) return;
  shared_.side.log(exchange_->request, reply_,
                   std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - asked_at_));
}

void Connection::finish() {
  log();
  if (later_) std::exchange(later_, nullptr)->leave();
  if (last_) return hang_up();
  await_request();
}

// What the client still sends is dropped for a while, because closing a socket with something unread in it would take
// back the answer.
void Connection::hang_up() {
  const bool wait = unread() || !shared_.all.ending();
  enter(Phase::kLinger);
  buffer_.clear();
  deadline_ = Clock::now() + (wait ? kLinger : 100ms);
  arm();
  wire_->say_goodbye([self = shared_from_this()](const Wire::Error&) {
    if (self->phase_ != Phase::kLinger) return;
    Wire::Error ignored;
    self->wire_->socket().shutdown(Wire::Socket::shutdown_send, ignored);
    if (self->over_) return self->close();
    self->hung_up_ = true;
    self->read_more();
  });
}

void Connection::gone() {
  if (phase_ == Phase::kClosed) return;
  const bool asked = phase_ == Phase::kWork || phase_ == Phase::kAnswer;
  if (asked && !head_sent_) shared_.side.count(reply_.status = 499);
  if (asked) log();
  close();
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  if (exchange_) exchange_->gone = true;
  if (later_) std::exchange(later_, nullptr)->leave();
  phase_ = Phase::kClosed;
  Wire::Error ignored;
  wire_->socket().close(ignored);
  timer_.cancel();
  shared_.all.remove(entry_);
}

Connection::Clock::time_point Connection::next_time() const {
  auto next = Clock::time_point::max();
  if (phase_ == Phase::kClosed) return next;
  if (writing_) next = write_deadline_;
  if (phase_ != Phase::kWork && phase_ != Phase::kAnswer) return std::min(next, deadline_);
  if (over_ && !head_sent_ && !reader_.head.old) next = std::min(next, probe_);
  if (!later_ || writing_) return next;
  if (!head_sent_) return std::min(next, later_->wake());
  const auto ping = over_ ? std::chrono::seconds(kProbe) : later_->ping_interval();
  if (ping > 0s && !later_->ping().empty()) next = std::min(next, last_write_ + ping);
  return std::min(next, later_->wake());
}

void Connection::arm() {
  const auto next = next_time();
  if (next >= armed_) return;  // it is looked at then, too
  armed_ = next;
  timer_.expires_at(next);
  timer_.async_wait([self = shared_from_this()](const Wire::Error& error) {
    if (!error) self->tick();
  });
}

void Connection::tick() {
  armed_ = Clock::time_point::max();
  const auto now = Clock::now();
  if (phase_ == Phase::kClosed) return;
  if (now < next_time()) return arm();
  if (writing_ && now >= write_deadline_) return gone();
  switch (phase_) {
    case Phase::kHandshake:
    case Phase::kLinger: return close();
    case Phase::kHead:
      if (now < deadline_) break;
      if (!heard_) return hang_up();
      exchange_ = std::make_shared<Exchange>(shared_.bodies);
      return refuse({408, "invalid_request_error", "the request's head did not come in time"});
    case Phase::kBody:
      if (now < deadline_) break;
      return refuse({408, "invalid_request_error", "the body did not come in time"});
    default: break;
  }
  if (over_ && !head_sent_ && !reader_.head.old && now >= probe_) {
    probe_ = now + kProbeAgain;
    write(kInterim);
  }
  if (later_ && !writing_) {
    poll();
    const auto ping = over_ ? std::chrono::seconds(kProbe) : later_ ? later_->ping_interval() : 0s;
    if (later_ && head_sent_ && !finished_ && !writing_ && ping > 0s && now >= last_write_ + ping) {
      if (const std::string sign = later_->ping(); !sign.empty()) write(framed(sign));
    }
  }
  arm();
}

}  // namespace sx::server
