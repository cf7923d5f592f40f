// Text from files, made safe to show: bytes that would disturb a terminal are escaped and long texts are cut.
#pragma once
#include <string>
#include <string_view>

namespace sx {

// At most about `limit` bytes; control bytes as \xNN or \n; cut at a whole UTF-8 character, followed by "...".
std::string printable(std::string_view text, size_t limit = 120);

}  // namespace sx
