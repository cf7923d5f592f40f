// One connection: request after request, each with its head as it was read strictly and with exactly the body that the
// head announced. Everything happens on the strand of its socket; no thread waits for a client or for an answer. While
// a request is being answered the client's side is still read: one that leaves is noticed at once.
#pragma once
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "server/body_room.h"
#include "server/connections.h"
#include "server/error.h"
#include "server/http.h"
#include "server/request_head.h"
#include "server/wire.h"
#include "server/workers.h"

namespace sx::server {

struct Deadlines {
  std::chrono::milliseconds request{30000};  // for all of a request,
  std::chrono::milliseconds head{10000};     // for its head,
  std::chrono::milliseconds idle{5000};      // for its first byte
  std::chrono::milliseconds write{30000};    // for a client that reads nothing
};

// The code of an error: an owner has as many requests waiting to be read as it may.
inline constexpr const char* kReadingQueueFull = "reading_queue_full";

// What connections ask for each request.
class HttpSide {
 public:
  struct Admission {
    bool refused = false;        // the reply says why; the body is not read
    std::optional<Lane> lane{};  // of the workers; none: on the strand
    std::string owner{};         // whose request it is, as an error calls it; empty: nobody's but the address's
  };
  virtual ~HttpSide() = default;
  // Before the body is read: whether and where the request is handled. The request has no body yet.
  virtual Admission admit(const RequestHead& head, const HttpRequest& request, HttpReply& reply) = 0;
  // May run on several threads at a time. Throws nothing.
  virtual void handle(HttpRequest& request, HttpReply& reply) = 0;
  // The reply to a request that cannot be handed on, or that failed later.
  virtual void explain(const HttpRequest& request, HttpReply& reply, const ApiError& error) = 0;
  virtual void count(int status) = 0;  // of every reply, once, when it begins; 499: the client left before
  // When all of it is written, or the client has left.
  virtual void log(const HttpRequest& request, const HttpReply& reply, std::chrono::milliseconds took) = 0;
};

// What all connections share.
struct ConnectionSurroundings {
  HttpSide& side;
  Connections& all;
  Workers& workers;
  BodyRoom& bodies;
  Deadlines deadlines{};
};

class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::unique_ptr<Wire> wire, const std::string& address, ConnectionSurroundings& shared);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void start();  // once, on any thread

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { kHandshake, kHead, kBody, kWork, kAnswer, kLinger, kClosed };
  struct Exchange;

  void enter(Phase phase);
  void await_request();
  void read_more();
  void on_read(const Wire::Error& error, size_t size);
  void on_end();  // the client sends nothing more
  void take_head();
  void take_body();
  void hand_over();
  void work_in(Lane lane, const std::shared_ptr<Exchange>& exchange);  // throws an ApiError where too many wait
  void answer(const std::shared_ptr<Exchange>& done);
  void poll();  // the reply that comes later
  void refuse(const ApiError& error);
  void send_whole();
  std::string head_text(const char* framing);  // decides whether it is the last reply
  std::string framed(std::string_view piece) const;
  void write(std::string_view text);
  void pump();
  void on_write(const Wire::Error& error, size_t size);
  void log();
  void finish();   // the reply is written
  void hang_up();  // no more is written; what the client still sends is dropped for a while
  void gone();     // the client is
  void close();
  void watch_errors();
  void arm();
  void tick();
  Clock::time_point next_time() const;
  bool unread() const { return left_ > 0 || !reader_.head.has_end(); }

  const std::unique_ptr<Wire> wire_;
  ConnectionSurroundings& shared_;
  const std::string address_;
  Connections::Handle entry_{};
  boost::asio::steady_timer timer_;
  Clock::time_point armed_ = Clock::time_point::max();
  Phase phase_ = Phase::kHandshake;
  bool reading_ = false, writing_ = false;
  bool over_ = false;     // the client sends nothing more; it may still read
  bool hung_up_ = false;  // nothing more is written
  int served_ = 0;        // requests

  // Of the request.
  HeadReader reader_{};
  bool heard_ = false;    // its first byte
  std::string buffer_{};  // read, and not yet taken
  std::string piece_{};   // being read
  size_t left_ = 0;       // of the body
  size_t dropped_ = 0;    // bytes, while it lingers
  std::optional<Lane> lane_{};
  std::shared_ptr<Exchange> exchange_{};
  Clock::time_point deadline_{}, request_deadline_{}, asked_at_{};

  // Of its reply.
  HttpReply reply_{};
  std::shared_ptr<LaterReply> later_{};
  bool head_sent_ = false, finished_ = false, last_ = false;
  std::atomic<bool> rung_{false};
  std::string out_{}, front_{};  // to be written; being written,
  size_t sent_ = 0;              // so far
  Clock::time_point write_deadline_{}, last_write_{}, probe_{};
};

}  // namespace sx::server
