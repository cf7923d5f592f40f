// Under which names the server may be asked. A page of any origin can have its own name lead to this machine (DNS
// rebinding): to the browser the server is then part of that page, and only the header Host tells.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace sx::server {

struct HostRules {
  bool loopback = true;              // only this machine can reach the server
  bool keys = false;                 // who asks must know a key, which no such page does
  std::vector<std::string> names{};  // allowed besides; "*" for all
};

// 127.0.0.0/8, ::1 or localhost, without brackets.
bool is_loopback(std::string_view name);

// `host` as in the header, with or without a port:
// - this machine's own (localhost, 127.0.0.0/8, [::1]) and the names given, always;
// - anything where there are keys;
// - where others can reach the server: addresses, and names that nobody can own on the internet (without a dot, or in .local).
bool host_allowed(std::string_view host, const HostRules& rules);

}  // namespace sx::server
