#include "server/request_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <charconv>
#include <utility>

#include "server/error.h"
#include "server/http.h"

namespace sx::server {
namespace http = boost::beast::http;
namespace {

constexpr std::array<std::string_view, 7> kMethods{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"};
// Headers that decide who asks and where a request ends: a second one would be another request to whoever reads the
// last.
constexpr std::array<std::string_view, 7> kOnce{"host",   "content-length", "transfer-encoding", "content-encoding",
                                                "origin", "authorization",  "x-api-key"};
constexpr size_t kLengthDigits = 18;

ApiError refusal(int status, const std::string& message) { return {status, "invalid_request_error", message}; }

bool is_decimal(char c) { return c >= '0' && c <= '9'; }
bool is_visible(char c) { return c > 0x20 && c < 0x7f; }
bool is_text(char c) { return c == '\t' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f); }

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  return first == text.npos ? std::string_view() : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace

std::string_view RequestHead::header(std::string_view name) const {
  const auto found = std::ranges::find(headers, name, [](const auto& h) { return std::string_view(h.first); });
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

bool RequestHead::lists(std::string_view name, std::string_view word) const {
  for (const auto& [header, value] : headers) {
    if (header != name) continue;
    for (std::string_view rest = value; !rest.empty();) {
      const size_t comma = std::min(rest.find(','), rest.size());
      if (std::ranges::equal(trimmed(rest.substr(0, comma)), word, {}, lower)) return true;
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }
  return false;
}

namespace {

// Beast's reader of heads, with what it leaves to others: which methods there are, what a target is, and that no header
// which decides something comes twice.
class StrictParser final : public http::basic_parser<true> {
 public:
  explicit StrictParser(RequestHead& head) : head_(head) {
    header_limit(kHeadBytes);
    body_limit(boost::none);  // bodies are not read here
  }

 private:
  using Error = boost::beast::error_code;
  using Text = boost::beast::string_view;

  void on_request_impl(http::verb, Text method, Text target, int version, Error&) override {
    if (std::ranges::find(kMethods, std::string_view(method)) == kMethods.end())
      throw refusal(405, "no path has the request's method");
    if (!(target.starts_with('/') || (target == "*" && method == "OPTIONS")) ||
        !std::ranges::all_of(target, is_visible))
      throw refusal(400, "the request's target is not a path");
    head_.method = method;
    head_.target = target;
    head_.old = version == 10;
  }
  void on_field_impl(http::field, Text given, Text value, Error&) override {
    if (!std::ranges::all_of(value, is_text)) throw refusal(400, "a header's value has control characters");
    std::string name(given);
    std::ranges::transform(name, name.begin(), lower);
    if (head_.headers.size() >= kHeaders) throw refusal(431, fmt::format("there are more than {} headers", kHeaders));
    const auto is = [&](const auto& header) { return header.first == name; };
    if (std::ranges::find(kOnce, name) != kOnce.end() && std::ranges::any_of(head_.headers, is))
      throw refusal(400, fmt::format("there are two headers '{}'", name));
    if (name == "content-length") {
      if (value.empty() || value.size() > kLengthDigits || !std::ranges::all_of(value, is_decimal))
        throw refusal(400, "Content-Length is not a number of bytes");
      std::from_chars(value.data(), value.data() + value.size(), head_.length);
      head_.measured = true;
    }
    if (name == "transfer-encoding") head_.encoded = true;
    head_.headers.emplace_back(std::move(name), std::string(value));
  }
  void on_response_impl(int, Text, int, Error&) override {}
  void on_header_impl(Error&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, Error&) override {}
  std::size_t on_body_impl(Text body, Error&) override { return body.size(); }
  void on_chunk_header_impl(std::uint64_t, Text, Error&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, Text body, Error&) override { return body.size(); }
  void on_finish_impl(Error&) override {}

  RequestHead& head_;
};

// What Beast does not understand.
ApiError not_understood(std::string_view line, const boost::beast::error_code& error) {
  if (error == http::error::bad_version) {
    const std::string_view version = line.substr(line.rfind(' ') + 1);
    const bool other = version.starts_with("HTTP/") && version != "HTTP/1.1" && version != "HTTP/1.0";
    return refusal(other ? 505 : 400, "the request is not of HTTP/1.1 or 1.0");
  }
  return refusal(400, fmt::format("the request's head cannot be read: {}", error.message()));
}

}  // namespace

bool HeadReader::take(std::string& text) {
  for (;;) {
    const size_t end = text.find('\n', checked_), size = (end == text.npos ? text.size() : end + 1) - checked_;
    if (size > kLineBytes) {
      if (checked_ == 0) throw refusal(414, fmt::format("the request line has more than {} bytes", kLineBytes));
      throw refusal(431, fmt::format("a header has more than {} bytes", kLineBytes));
    }
    if (checked_ + size > kHeadBytes)
      throw refusal(431, fmt::format("the headers have more than {} bytes", kHeadBytes));
    if (end == text.npos) return false;
    if (!std::exchange(begun_, true) && text.starts_with("\r\n")) {  // one empty line may precede a request
      text.erase(0, 2);
      continue;
    }
    check_line(std::string_view(text).substr(checked_, size));
    checked_ += size;
    if (size == 2) break;
  }
  parse({text.data(), checked_});
  text.erase(0, checked_);
  return true;
}

// What Beast would let pass although two readers could take it for different requests, or that has no end.
void HeadReader::check_line(std::string_view line) {
  if (line.size() < 2 || !line.ends_with("\r\n"))
    throw refusal(400, "a line of the request's head does not end with CR LF");
  if (line[0] == ' ' || line[0] == '\t') throw refusal(400, "a line of the request's head begins with a space");
  if (checked_ == 0 && line.size() == 2) throw refusal(400, "there is no request line");
  if (++lines_ > kHeaders + 2) throw refusal(431, fmt::format("there are more than {} headers", kHeaders));
}

void HeadReader::parse(std::string_view text) {
  StrictParser parser(head);
  boost::beast::error_code error;
  const size_t read = parser.put(boost::asio::buffer(text), error);
  if (error) throw not_understood(text.substr(0, text.find('\r')), error);
  if (!parser.is_header_done() || read != text.size()) throw refusal(400, "the request's head cannot be read");
  check();
}

void HeadReader::check() const {
  if (head.encoded && head.measured) throw refusal(400, "Content-Length and Transfer-Encoding exclude each other");
  if (head.encoded && head.old) throw refusal(400, "HTTP/1.0 has no Transfer-Encoding");
  const auto is_host = [](const auto& header) { return header.first == "host"; };
  if (!head.old && std::ranges::none_of(head.headers, is_host)) throw refusal(400, "there is no header Host");
}

}  // namespace sx::server
