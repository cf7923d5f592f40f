// Bounded reading and strict parsing of JSON files.
#include "base/json_text.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/mmap.h"
#include "base/printable.h"

namespace sx {
namespace {

constexpr int kMaxDepth = 64;

[[noreturn]] void wrong_kind(const Json& value, const char* key, const char* expected, const std::string& file) {
  fail("{}: key '{}' is {}; {} is expected", file, key, value.type_name(), expected);
}

// A parser's eyes on the text: watches the depth and the keys of every open object.
class Watch {
 public:
  explicit Watch(const std::string& file) : file_(file) {}

  bool see(int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) fail("{}: JSON nested more than {} deep", file_, kMaxDepth);
    if (event == Json::parse_event_t::object_start) {
      keys_.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys_.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) fail("{}: key '{}' appears twice", file_, printable(key));
    }
    return true;
  }

 private:
  const std::string& file_;
  std::vector<std::unordered_set<std::string>> keys_;
};

}  // namespace

std::string read_text_file(const std::string& path, size_t most) {
  const MappedFile map(path);
  const auto bytes = map.bytes();
  if (bytes.size() > most) fail("{}: {} bytes; at most {} are accepted", path, bytes.size(), most);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string read_text_file_if_any(const std::string& path, size_t most) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? read_text_file(path, most) : std::string();
}

Json parse_json(std::string_view text, const std::string& file) {
  Watch watch(file);
  try {
    return Json::parse(text.begin(), text.end(), [&](int depth, Json::parse_event_t event, Json& parsed) {
      return watch.see(depth, event, parsed);
    });
  } catch (const Json::exception& error) { fail("{}: not valid JSON: {}", file, printable(error.what(), 200)); }
}

const Json* json_member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<int64_t> json_int(const Json& object, const char* key, const std::string& file) {
  const Json* value = json_member(object, key);
  if (!value) return std::nullopt;
  if (value->is_number_unsigned()) {
    const auto number = value->get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      fail("{}: key '{}' is too large", file, key);
    return static_cast<int64_t>(number);
  }
  if (value->is_number_integer()) return value->get<int64_t>();
  // Some writers turn whole numbers into floats ("factor": 8192.0).
  if (value->is_number_float()) {
    const double number = value->get<double>();
    if (std::trunc(number) == number && std::fabs(number) < 9e15) return static_cast<int64_t>(number);
  }
  wrong_kind(*value, key, "an integer", file);
}

std::optional<double> json_double(const Json& object, const char* key, const std::string& file) {
  const Json* value = json_member(object, key);
  if (!value) return std::nullopt;
  if (!value->is_number()) wrong_kind(*value, key, "a number", file);
  const double number = value->get<double>();
  if (!std::isfinite(number)) fail("{}: key '{}' is not a finite number", file, key);
  return number;
}

std::optional<bool> json_bool(const Json& object, const char* key, const std::string& file) {
  const Json* value = json_member(object, key);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) wrong_kind(*value, key, "true or false", file);
  return value->get<bool>();
}

std::optional<std::string> json_string(const Json& object, const char* key, const std::string& file) {
  const Json* value = json_member(object, key);
  if (!value) return std::nullopt;
  if (!value->is_string()) wrong_kind(*value, key, "a string", file);
  return value->get<std::string>();
}

}  // namespace sx
