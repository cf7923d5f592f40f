// Which pages of browsers may talk to the server (CORS).
#pragma once
#include <string>
#include <vector>

#include "server/http.h"

namespace sx::server {

// Pages of this machine (http or https, any port) and those given, "*" meaning all.
bool origin_allowed(const std::string& origin, const std::vector<std::string>& allowed);

// Says so in the response. Nothing is said to other pages, so that browsers keep the answer from them.
void allow_origin(const HttpRequest& req, HttpReply& res, const std::vector<std::string>& allowed);

// A request that changes or costs something, sent by a page that is neither ours nor allowed: browsers send those
// without asking.
bool is_foreign(const HttpRequest& req, const std::vector<std::string>& allowed);

}  // namespace sx::server
