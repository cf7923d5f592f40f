// Replies to a connection: JSON, errors, and errors before the body is read.
#pragma once
#include <httplib.h>

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "server/error.h"

namespace sx::server {

constexpr const char* kRequestId = "x-request-id";
// The id of a request: the client's own if it is short and plain, else a new one.
std::string request_id(const std::string& given);
// Gives the response the id of its request. Errors repeat it.
void name_request(const httplib::Request& req, httplib::Response& res);

void send(httplib::Response& res, const nlohmann::ordered_json& body);
// In the form of whoever asks on `path`.
void send_error(httplib::Response& res, const ApiError& error, const std::string& path, int retry_after = 1);

// Answers without reading the body: the connection ends with that, or the body would be taken for the next request.
void send_error_unread(httplib::Response& res, const ApiError& error, const std::string& path);

}  // namespace sx::server
