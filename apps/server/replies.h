// Replies to a connection: JSON, errors, and requests that are turned away before their body is read.
#pragma once
#include <httplib.h>

#include <nlohmann/json_fwd.hpp>

#include "server/error.h"

namespace sx::server {

constexpr const char* kRequestId = "x-request-id";
// Gives the response the id of its request: the client's own if it is short and plain, else a new one. Errors repeat it.
void name_request(const httplib::Request& req, httplib::Response& res);

void send(httplib::Response& res, const nlohmann::ordered_json& body);
void send_error(httplib::Response& res, const ApiError& error, int retry_after = 1);

// A request that is turned away before its body was read: the connection must end after the response, or the body would be
// taken for the next request.
void leave_unread(const httplib::Request& req, httplib::Response& res);
void close_if_unread(const httplib::Request& req, const httplib::Response& res);

}  // namespace sx::server
