#include "server/target.h"

#include <algorithm>

namespace sx::server {
namespace {

int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

}  // namespace

std::string decode_target(std::string_view text, bool plus) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool coded = text[i] == '%' && i + 2 < text.size() && hex(text[i + 1]) >= 0 && hex(text[i + 2]) >= 0;
    if (coded) decoded += char(hex(text[i + 1]) * 16 + hex(text[i + 2])), i += 2;
    else decoded += plus && text[i] == '+' ? ' ' : text[i];
  }
  return decoded;
}

void read_target(std::string_view target, HttpRequest& request) {
  target = target.substr(0, target.find('#'));
  const size_t mark = std::min(target.find('?'), target.size());
  request.path = decode_target(target.substr(0, mark), false);
  for (std::string_view rest = target.substr(std::min(mark + 1, target.size())); !rest.empty();) {
    const size_t end = std::min(rest.find('&'), rest.size()), equal = std::min(rest.find('='), end);
    if (end > 0)
      request.params.emplace_back(
          decode_target(rest.substr(0, equal), true),
          decode_target(rest.substr(std::min(equal + 1, end), end - std::min(equal + 1, end)), true));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

}  // namespace sx::server
