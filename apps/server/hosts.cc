#include "server/hosts.h"

#include <arpa/inet.h>

#include <algorithm>

namespace sx::server {
namespace {

bool is_address(const std::string& name, int family) {
  in6_addr ignored{};
  return ::inet_pton(family, name.c_str(), &ignored) == 1;
}

std::string lower(std::string_view text) {
  std::string low(text);
  for (char& c : low) c = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  return low;
}

// Without the port and, for addresses of IPv6, the brackets; empty where it is neither.
std::string name_of(std::string_view host) {
  const bool bracket = host.starts_with('[');
  const size_t end = bracket ? host.find(']') : std::min(host.find(':'), host.size());
  if (end == host.npos) return {};
  const std::string_view port = host.substr(end + bracket);
  const bool fine = port.empty() || (port[0] == ':' && port.find_first_not_of("0123456789", 1) == port.npos);
  const std::string name = lower(host.substr(bracket, end - bracket));
  return fine && (!bracket || is_address(name, AF_INET6)) ? name : std::string();
}

}  // namespace

bool is_loopback(std::string_view name) {
  const std::string low = lower(name);
  return low == "localhost" || low == "::1" || (low.starts_with("127.") && is_address(low, AF_INET));
}

bool host_allowed(std::string_view host, const HostRules& rules) {
  const std::string name = name_of(host);
  if (rules.keys || is_loopback(name)) return true;
  const auto given = [&](const std::string& allowed) {
    return allowed == "*" || (!name.empty() && lower(allowed) == name);
  };
  if (std::ranges::any_of(rules.names, given)) return true;
  if (rules.loopback || name.empty()) return false;
  return is_address(name, AF_INET) || is_address(name, AF_INET6) || name.find('.') == name.npos ||
         name.ends_with(".local");
}

}  // namespace sx::server
