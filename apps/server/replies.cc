#include "server/replies.h"

#include <nlohmann/json.hpp>

#include "server/connection.h"
#include "server/response.h"

namespace sx::server {

using Json = nlohmann::ordered_json;

void send(httplib::Response& res, const Json& body) {
  res.set_content(body.dump(-1, ' ', false, Json::error_handler_t::replace), "application/json");
}

void send_error(httplib::Response& res, const ApiError& error, int retry_after) {
  res.status = error.status;
  if (error.status == 429 || error.status == 503) res.set_header("Retry-After", std::to_string(retry_after));
  if (error.status == 401) res.set_header("WWW-Authenticate", "Bearer");
  res.set_content(error_body(error), "application/json");
}

void send_error_unread(httplib::Response& res, const ApiError& error) {
  send_error(res, error);
  if (Connection::current().unread()) res.set_header("Connection", "close");
}

}  // namespace sx::server
