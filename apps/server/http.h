// Requests and replies as handlers see them, whatever carries them. A handler fills in its reply at once, or leaves a
// LaterReply there, which the connection asks whenever it is rung: no thread waits for an answer.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sx::server {

// A letter of ASCII in lower case; other bytes stay.
inline char lower(char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; }

using Fields = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method, path;            // the path is decoded, and has no query
  Fields headers{};                    // with their names in lower case
  Fields params{};                     // of the query, decoded
  std::vector<std::string> matches{};  // [0]: the path; [1]: what stood for the variable part of the route
  std::string body{};

  bool has_header(std::string_view name) const;  // in any case, as in the two that follow
  std::string get_header_value(std::string_view name) const;
  bool has_param(std::string_view name) const;
  std::string get_param_value(std::string_view name) const;
};

struct HttpReply;

// A reply that comes later, whole or piece by piece. All but the ring happens on the connection's strand.
class LaterReply {
 public:
  enum class State { kWaiting, kStreaming, kDone };
  using TimePoint = std::chrono::steady_clock::time_point;

  virtual ~LaterReply() = default;
  // Takes the function to call, from any thread, when next() has something new. Called once, before next().
  virtual void listen(std::function<void()> ring) = 0;
  // Asked after each ring, at wake(), and when what was given before has been written (a client that does not read is
  // not asked for). kWaiting: there is nothing to send yet. kStreaming: the reply's status and headers go out if they
  // have not yet, then `piece` (may be empty). kDone: the same for the last time; where nothing has gone out before,
  // the reply is whole: its own body, and no piece. May throw an ApiError as long as nothing has gone out.
  virtual State next(HttpReply& reply, std::string& piece) = 0;
  virtual TimePoint wake() const { return TimePoint::max(); }  // when to ask at the latest
  virtual std::string ping() const { return {}; }              // what a silent stream carries; empty: nothing
  virtual std::chrono::seconds ping_interval() const { return std::chrono::seconds(0); }  // 0: never
  // Nobody reads any more: the client has left, or has everything.
  virtual void leave() = 0;
};

struct HttpReply {
  int status = 200;
  Fields headers{};
  std::string body{};
  std::shared_ptr<LaterReply> later{};  // instead of a body
  bool takes_long = false;              // nothing was done: the request is to be handled once more, where nobody waits

  bool has_header(std::string_view name) const;
  std::string get_header_value(std::string_view name) const;
  void set_header(std::string_view name, std::string value);  // instead of one that is there
  void set_content(std::string content, std::string_view type);
};

}  // namespace sx::server
