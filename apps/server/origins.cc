#include "server/origins.h"

#include <algorithm>
#include <string_view>

namespace sx::server {
namespace {

bool is_local(std::string_view origin) {
  for (std::string_view scheme : {"http://", "https://"}) {
    if (!origin.starts_with(scheme)) continue;
    for (std::string_view host : {"localhost", "127.0.0.1", "[::1]"}) {
      std::string_view rest = origin.substr(scheme.size());
      if (!rest.starts_with(host)) continue;
      rest.remove_prefix(host.size());
      if (rest.empty()) return true;
      const bool port =
          rest.size() > 1 && rest[0] == ':' && rest.substr(1).find_first_not_of("0123456789") == rest.npos;
      if (port) return true;
    }
  }
  return false;
}

}  // namespace

bool origin_allowed(const std::string& origin, const std::vector<std::string>& allowed) {
  const auto listed = [&](const char* name) { return std::ranges::find(allowed, name) != allowed.end(); };
  return is_local(origin) || listed("*") || listed(origin.c_str());
}

bool is_foreign(const HttpRequest& req, const std::vector<std::string>& allowed) {
  const std::string origin = req.get_header_value("Origin");
  if (origin.empty() || req.method == "GET" || req.method == "HEAD") return false;
  const std::string host = req.get_header_value("Host");
  return !origin_allowed(origin, allowed) && origin != "http://" + host && origin != "https://" + host;
}

void allow_origin(const HttpRequest& req, HttpReply& res, const std::vector<std::string>& allowed) {
  res.set_header("Vary", "Origin");
  const std::string origin = req.get_header_value("Origin");
  if (origin.empty() || !origin_allowed(origin, allowed)) return;
  res.set_header("Access-Control-Allow-Origin", origin);
  res.set_header("Access-Control-Expose-Headers", "x-request-id");
  if (req.method != "OPTIONS") return;
  res.set_header("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  // What its page asks for: OpenAI's client of JavaScript alone sends a dozen headers x-stainless-*.
  const std::string headers = req.get_header_value("Access-Control-Request-Headers");
  res.set_header("Access-Control-Allow-Headers", headers.empty() ? "Authorization, Content-Type, X-Api-Key" : headers);
  res.set_header("Access-Control-Max-Age", "600");
}

}  // namespace sx::server
