// The head of a request, read strictly by Boost.Beast's parser and rules of our own: what two readers could take for
// different requests is refused, and every part has a bound.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sx::server {

constexpr size_t kLineBytes = 8192;      // of one line, its end included
constexpr size_t kHeadBytes = 64 << 10;  // of all lines
constexpr size_t kHeaders = 100;

struct RequestHead {
  std::string method, target;
  bool old = false;                                            // HTTP/1.0
  std::vector<std::pair<std::string, std::string>> headers{};  // with their names in lower case
  bool measured = false;                                       // it has a Content-Length,
  size_t length = 0;                                           // which is this
  bool encoded = false;  // it has a Transfer-Encoding: where its body ends is not known

  bool has_body() const { return encoded || length > 0; }
  bool takes_body() const { return method == "POST" || method == "PUT" || method == "PATCH"; }
  bool has_end() const {
    return measured || !(encoded || takes_body());
  }                                                      // it is known where another request can begin
  std::string_view header(std::string_view name) const;  // the first of that name (in lower case); empty: none
  bool lists(std::string_view name, std::string_view word) const;  // a header's comma-separated words have that one
};

class HeadReader {
 public:
  // Looks at what was added to `text` since the last call. True: the head is complete and was taken off its front.
  // Throws ApiError, after which nothing of the connection can be trusted.
  bool take(std::string& text);
  bool begun() const { return begun_; }
  RequestHead head{};

 private:
  void check_line(std::string_view line);
  void parse(std::string_view text);
  void check() const;
  bool begun_ = false;
  size_t checked_ = 0;  // bytes of whole lines
  size_t lines_ = 0;
};

}  // namespace sx::server
