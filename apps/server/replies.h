// Replies to a connection: JSON, errors, and requests that are turned away before their body is read.
#pragma once
#include <httplib.h>

#include <nlohmann/json_fwd.hpp>

#include "server/error.h"

namespace sx::server {

void send(httplib::Response& res, const nlohmann::ordered_json& body);
void send_error(httplib::Response& res, const ApiError& error);

// Bodies come with their length and as they are: no size that is known only after reading or unpacking. A request that
// is turned away for that leaves its body unread, so the connection must be closed after the response.
httplib::Server::HandlerResponse check_framing(const httplib::Request& req, httplib::Response& res);
void close_if_unread(const httplib::Request& req, const httplib::Response& res);

}  // namespace sx::server
