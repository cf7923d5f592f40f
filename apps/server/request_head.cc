#include "server/request_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "server/error.h"

namespace sx::server {
namespace {

constexpr std::array<std::string_view, 7> kMethods{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"};
// Headers that decide who asks and where a request ends: a second one would be another request to whoever reads the
// last.
constexpr std::array<std::string_view, 7> kOnce{"host",   "content-length", "transfer-encoding", "content-encoding",
                                                "origin", "authorization",  "x-api-key"};
constexpr size_t kLengthDigits = 18;

ApiError refusal(int status, const std::string& message) { return {status, "invalid_request_error", message}; }

char lower(char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_token(char c) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'z') || kMarks.find(c) != kMarks.npos;
}
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

bool HeadReader::take(std::string& text) {
  size_t taken = 0;
  bool done = false;
  while (!done) {
    const size_t end = text.find('\n', taken), size = (end == text.npos ? text.size() : end + 1) - taken;
    if (size > kLineBytes) {
      if (head.method.empty()) throw refusal(414, fmt::format("the request line has more than {} bytes", kLineBytes));
      throw refusal(431, fmt::format("a header has more than {} bytes", kLineBytes));
    }
    if (bytes_ + size > kHeadBytes) throw refusal(431, fmt::format("the headers have more than {} bytes", kHeadBytes));
    if (end == text.npos) break;
    if (size < 2 || text[end - 1] != '\r') throw refusal(400, "a line of the request's head does not end with CR LF");
    const bool first = bytes_ == 0;
    bytes_ += size;
    if (!(first && size == 2))
      done = add_line({text.data() + taken, size - 2});  // one empty line may precede a request
    taken += size;
  }
  text.erase(0, taken);
  return done;
}

bool HeadReader::add_line(std::string_view line) {
  if (head.method.empty()) return add_request_line(line), false;
  if (!line.empty()) return add_header(line), false;
  check();
  return true;
}

void HeadReader::add_request_line(std::string_view line) {
  const size_t first = line.find(' '), second = first == line.npos ? line.npos : line.find(' ', first + 1);
  if (second == line.npos) throw refusal(400, "the request line is not METHOD PATH VERSION");
  const std::string_view method = line.substr(0, first), version = line.substr(second + 1);
  const std::string_view target = line.substr(first + 1, second - first - 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    const bool other = version.starts_with("HTTP/") && std::ranges::all_of(version, is_visible);
    throw refusal(other ? 505 : 400, "the request is not of HTTP/1.1 or 1.0");
  }
  if (std::ranges::find(kMethods, method) == kMethods.end()) throw refusal(405, "no path has the request's method");
  if (!(target.starts_with('/') || (target == "*" && method == "OPTIONS")) || !std::ranges::all_of(target, is_visible))
    throw refusal(400, "the request's target is not a path");
  head.method = method;
  head.target = target;
  head.old = version == "HTTP/1.0";
}

void HeadReader::add_header(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == 0 || colon == line.npos || !std::ranges::all_of(line.substr(0, colon), is_token))  // folded lines, too
    throw refusal(400, "a header is not NAME: VALUE");
  const std::string_view value = trimmed(line.substr(colon + 1));
  if (!std::ranges::all_of(value, is_text)) throw refusal(400, "a header's value has control characters");
  std::string name(line.substr(0, colon));
  std::ranges::transform(name, name.begin(), lower);
  if (head.headers.size() >= kHeaders) throw refusal(431, fmt::format("there are more than {} headers", kHeaders));
  const auto is = [&](const auto& header) { return header.first == name; };
  if (std::ranges::find(kOnce, name) != kOnce.end() && std::ranges::any_of(head.headers, is))
    throw refusal(400, fmt::format("there are two headers '{}'", name));
  if (name == "content-length") {
    if (value.empty() || value.size() > kLengthDigits || !std::ranges::all_of(value, is_digit))
      throw refusal(400, "Content-Length is not a number of bytes");
    std::from_chars(value.data(), value.data() + value.size(), head.length);
    head.measured = true;
  }
  if (name == "transfer-encoding") head.encoded = true;
  head.headers.emplace_back(std::move(name), std::string(value));
}

void HeadReader::check() const {
  if (head.encoded && head.measured) throw refusal(400, "Content-Length and Transfer-Encoding exclude each other");
  if (head.encoded && head.old) throw refusal(400, "HTTP/1.0 has no Transfer-Encoding");
  const auto is_host = [](const auto& header) { return header.first == "host"; };
  if (!head.old && std::ranges::none_of(head.headers, is_host)) throw refusal(400, "there is no header Host");
}

}  // namespace sx::server
