// Replies to a connection: JSON, errors, and refusals before the body is read.
#pragma once
#include <httplib.h>

#include <nlohmann/json_fwd.hpp>

#include "server/error.h"

namespace sx::server {

void send(httplib::Response& res, const nlohmann::ordered_json& body);
void send_error(httplib::Response& res, const ApiError& error, int retry_after = 1);

// Answers without reading the body: the connection ends with that, or the body would be taken for the next request.
void send_error_unread(httplib::Response& res, const ApiError& error);

}  // namespace sx::server
