// Small helpers of the files that read what a model writes: thoughts, calls, arguments.
#pragma once
#include <algorithm>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace sx::server {

inline constexpr std::string_view kSpaces = " \t\r\n";
inline constexpr int kMaxValueDepth = 64;  // of a written value, and of a schema

inline bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

inline size_t skip_spaces(std::string_view text, size_t at) {
  return std::min(text.size(), text.find_first_not_of(kSpaces, at));
}

// JSON on one line; bytes that are no UTF-8 are replaced.
std::string dump(const nlohmann::ordered_json& json);

}  // namespace sx::server
