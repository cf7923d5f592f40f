// The target of a request: its path and the parameters of its query, decoded.
#pragma once
#include <string>
#include <string_view>

#include "server/http.h"

namespace sx::server {

// %41 is A; what is no such code stays as it is. `plus`: a + is a space, as in queries.
std::string decode_target(std::string_view text, bool plus);

// Fills in path and params.
void read_target(std::string_view target, HttpRequest& request);

}  // namespace sx::server
