// Replies: JSON and errors.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "server/error.h"
#include "server/http.h"

namespace sx::server {

constexpr const char* kRequestId = "x-request-id";
// The id of a request: the client's own if it is short and plain, else a new one.
std::string request_id(const std::string& given);
// Gives the response the id of its request. Errors repeat it.
void name_request(const HttpRequest& req, HttpReply& res);

void send(HttpReply& res, const nlohmann::ordered_json& body);
// In the form of whoever asks on `path`.
void send_error(HttpReply& res, const ApiError& error, const std::string& path, int retry_after = 1);

}  // namespace sx::server
