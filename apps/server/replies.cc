#include "server/replies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>

#include "server/protocols.h"

namespace sx::server {

using Json = nlohmann::ordered_json;

std::string request_id(const std::string& given) {
  constexpr size_t kMost = 128;
  const bool plain =
      !given.empty() && given.size() <= kMost && std::all_of(given.begin(), given.end(), [](unsigned char c) {
        return std::isalnum(c) || std::string_view("-_.:").find(char(c)) != std::string_view::npos;
      });
  if (plain) return given;
  thread_local std::random_device device;
  return fmt::format("req_{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

void name_request(const HttpRequest& req, HttpReply& res) {
  if (!res.has_header(kRequestId)) res.set_header(kRequestId, request_id(req.get_header_value(kRequestId)));
}

void send(HttpReply& res, const Json& body) {
  res.set_content(body.dump(-1, ' ', false, Json::error_handler_t::replace), "application/json");
}

void send_error(HttpReply& res, const ApiError& error, const std::string& path, int retry_after) {
  res.status = error.status;
  if (error.status == 429 || error.status == 503) res.set_header("Retry-After", std::to_string(retry_after));
  if (error.status == 401) res.set_header("WWW-Authenticate", "Bearer");
  res.set_content(error_body_for(path, error, res.get_header_value(kRequestId)), "application/json");
}

}  // namespace sx::server
