// The description of the API that GET /openapi.json gives.
#pragma once
#include <string>
#include <string_view>

#include "server/request.h"

namespace sx::server {

std::string_view openapi_source();  // as it is written: openapi.json
// With this server's limits and names filled in.
std::string openapi_json(const Limits& limits, const std::string& version);

}  // namespace sx::server
