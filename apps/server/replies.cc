#include "server/replies.h"

#include <nlohmann/json.hpp>

#include "server/client_socket.h"
#include "server/response.h"

namespace sx::server {

using Json = nlohmann::ordered_json;

void send(httplib::Response& res, const Json& body) {
  res.set_content(body.dump(-1, ' ', false, Json::error_handler_t::replace), "application/json");
}

void send_error(httplib::Response& res, const ApiError& error) {
  res.status = error.status;
  if (error.status == 429) res.set_header("Retry-After", "1");
  if (error.status == 401) res.set_header("WWW-Authenticate", "Bearer");
  res.set_content(error_body(error), "application/json");
}

httplib::Server::HandlerResponse check_framing(const httplib::Request& req, httplib::Response& res) {
  const bool packed = req.has_header("Content-Encoding"), chunked = req.has_header("Transfer-Encoding");
  const bool body = req.method != "GET" && req.method != "HEAD" && req.method != "OPTIONS" && req.method != "DELETE";
  if (!packed && !chunked && (!body || req.has_header("Content-Length")))
    return httplib::Server::HandlerResponse::Unhandled;
  if (packed) send_error(res, {415, "invalid_request_error", "compressed bodies are not taken"});
  else send_error(res, {411, "invalid_request_error", "give the body's Content-Length; chunked bodies are not taken"});
  return httplib::Server::HandlerResponse::Handled;
}

void close_if_unread(const httplib::Request& req, const httplib::Response& res) {
  if (res.status == 411 || res.status == 415) ClientSocket(req.remote_addr, req.remote_port).hang_up();
}

}  // namespace sx::server
