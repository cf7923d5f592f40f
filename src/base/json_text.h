// JSON from files that nobody vouches for: a bounded reader and a parser that bounds nesting and refuses double keys.
// All errors are sx::Error and name the file.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace sx {

using Json = nlohmann::json;

// The whole file; refuses more than `most` bytes.
std::string read_text_file(const std::string& path, size_t most);
// Empty string if there is no such file.
std::string read_text_file_if_any(const std::string& path, size_t most);

Json parse_json(std::string_view text, const std::string& file);

// Members of an object. Each throws if the member has another type; the optional ones are empty for absent and null.
std::optional<int64_t> json_int(const Json& object, const char* key, const std::string& file);
std::optional<double> json_double(const Json& object, const char* key, const std::string& file);  // finite
std::optional<bool> json_bool(const Json& object, const char* key, const std::string& file);
std::optional<std::string> json_string(const Json& object, const char* key, const std::string& file);
const Json* json_member(const Json& object, const char* key);  // null for absent and null

}  // namespace sx
