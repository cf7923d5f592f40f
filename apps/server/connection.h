// One connection, as the HTTP library sees it: request after request, each with its head as it was read strictly and
// with exactly the body that the head announced. Whatever the library makes of a request, it cannot read into the next
// one.
#pragma once
#include <httplib.h>

#include <chrono>
#include <memory>
#include <string>

#include "server/connections.h"
#include "server/error.h"
#include "server/request_head.h"
#include "server/wire.h"

namespace sx::server {

struct Deadlines {
  std::chrono::milliseconds request{30000};  // for all of a request,
  std::chrono::milliseconds head{10000};     // for its head,
  std::chrono::milliseconds idle{5000};      // for its first byte
  std::chrono::milliseconds write{30000};    // for a client that reads nothing
};

class Connection final : public httplib::Stream {
 public:
  // Owns the socket, which is the wire's.
  Connection(int socket, std::unique_ptr<Wire> wire, Connections& all, const Deadlines& deadlines);
  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // That of the request which this thread answers.
  static Connection& current();

  // Waits for a request. False: there is no more. Throws the ApiError that refuses it.
  bool next();
  const RequestHead& head() const { return reader_.head; }
  bool unread() const {
    return left_ > 0 || !head().has_end();
  }                                    // not all of the request was read: no other can follow
  bool late() const { return late_; }  // the client took too long to send it
  // The answer to a request that cannot be handed on; the connection ends with it.
  void refuse(const ApiError& error);

  // Closed by the client, both ways. One that only ends its own side may still read; whether it does can only be found
  // out by writing. So it is sent an interim response now and then, as long as no other has begun: who has closed all
  // refuses that.
  bool gone();
  bool half_closed() const { return half_closed_; }  // as gone() last saw it

  // For the library.
  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }
  ssize_t read(char* into, size_t size) override;
  ssize_t write(const char* from, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return INVALID_SOCKET; }  // the library refuses high numbers, and needs none

 private:
  using Clock = Connections::Clock;
  bool wait(short events, Clock::time_point end);
  ssize_t fill(char* into, size_t size,
               Clock::time_point end);  // 0: the client's end; -1: broken, or the client is late
  bool send(std::string_view text);     // all of it
  void linger();

  const int socket_;
  Connections& all_;
  const Connections::Handle entry_;
  const Deadlines deadlines_;
  const std::unique_ptr<Wire> wire_;
  HeadReader reader_{};
  std::string buffer_{};          // read, and not yet handed on
  std::string shown_{};           // the head for the library,
  size_t shown_to_ = 0;           // which has read so much of it
  size_t left_ = 0;               // of the body
  Clock::time_point deadline_{};  // for the body
  bool wants_continue_ = false;   // before it sends the body
  bool answered_ = false;         // at least in part
  bool half_closed_ = false;
  Clock::time_point next_probe_{};
  bool late_ = false, broken_ = false;
  bool over_ = false;  // the client has nothing more to say
};

}  // namespace sx::server
