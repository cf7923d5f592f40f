#include "server/keys.h"

#include <fmt/format.h>
#include <specextend/error.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

namespace sx::server {
namespace {

using PlainJson = nlohmann::json;

std::string given_key(const std::string& authorization, const std::string& x_api_key) {
  const std::string bearer = "Bearer ";
  return authorization.starts_with(bearer) ? authorization.substr(bearer.size()) : x_api_key;
}

uint64_t id_of(const std::string& key) {
  uint64_t id = 0xcbf29ce484222325;  // FNV-1a: keys are the operator's, nobody can choose two that collide
  for (char c : key) id = (id ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  id = (id ^ id >> 32) * 0x9e3779b97f4a7c15;  // neighbouring keys do not look it
  id ^= id >> 29;
  return id == 0 ? 1 : id;
}

int64_t whole(const PlainJson& value, const std::string& name, int64_t most) {
  if (!value.is_number_integer() || value < 0 || value > most)
    throw Error(fmt::format("'{}' must be a whole number from 0 to {}", name, most));
  return value.get<int64_t>();
}

std::string text(const PlainJson& value, const std::string& name) {
  constexpr size_t kMost = 4096;
  if (!value.is_string() || value.get_ref<const std::string&>().empty() ||
      value.get_ref<const std::string&>().size() > kMost)
    throw Error(fmt::format("'{}' must be a text of 1 to {} bytes", name, kMost));
  return value.get<std::string>();
}

ApiKey read_key(const PlainJson& entry) {
  constexpr int kMostRequests = 1 << 20;
  if (!entry.is_object()) throw Error("it must be an object");
  ApiKey key;
  for (const auto& [name, value] : entry.items()) {
    if (name == "name") key.name = text(value, name);
    else if (name == "key") key.key = text(value, name);
    else if (name == "max_running") key.limits.max_running = int(whole(value, name, kMostRequests));
    else if (name == "max_waiting") key.limits.max_waiting = int(whole(value, name, kMostRequests));
    else if (name == "tokens_per_minute") key.limits.tokens_per_minute = whole(value, name, int64_t(1) << 40);
    else if (name == "weight") {
      if (!value.is_number() || !(value >= 0.001 && value <= 1000)) throw Error("'weight' must be from 0.001 to 1000");
      key.limits.weight = value.get<double>();
    } else if (name == "admin") {
      if (!value.is_boolean()) throw Error("'admin' must be true or false");
      key.admin = value.get<bool>();
    } else {
      throw Error(fmt::format("there is no field '{}'", name));
    }
  }
  if (key.name.empty() || key.key.empty()) throw Error("'name' and 'key' are needed");
  return key;
}

std::vector<ApiKey> read_json(const std::string& content) {
  const PlainJson list = PlainJson::parse(content, nullptr, false);
  if (!list.is_array()) throw Error("it begins as JSON but is no JSON list");
  std::vector<ApiKey> keys;
  std::set<std::string> names, texts;
  for (size_t i = 0; i < list.size(); ++i) {
    try {
      keys.push_back(read_key(list[i]));
      if (!names.insert(keys.back().name).second) throw Error("its name is that of another");
      if (!texts.insert(keys.back().key).second) throw Error("its key is that of another");
    } catch (const Error& e) { throw Error(fmt::format("entry {}: {}", i, e.what())); }
  }
  return keys;
}

std::vector<ApiKey> read_lines(std::istream& in) {
  std::vector<ApiKey> keys;
  for (std::string line; std::getline(in, line);) {
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (!line.empty() && line[0] != '#') keys.push_back({.name = fmt::format("line-{}", keys.size() + 1), .key = line});
  }
  return keys;
}

}  // namespace

bool equal_in_constant_time(const std::string& given, const std::string& expected) {
  unsigned differ = given.size() != expected.size();
  for (size_t i = 0; i < given.size(); ++i)
    differ |= unsigned(given[i] ^ (expected.empty() ? 0 : expected[i % expected.size()]));
  return differ == 0;
}

KeyRing::KeyRing(std::vector<ApiKey> keys) { replace(std::move(keys)); }

void KeyRing::replace(std::vector<ApiKey> keys) {
  auto ring = std::make_shared<const std::vector<ApiKey>>(std::move(keys));
  const std::lock_guard lock(mutex_);
  keys_ = std::move(ring);
}

std::shared_ptr<const std::vector<ApiKey>> KeyRing::keys() const {
  const std::lock_guard lock(mutex_);
  return keys_;
}

bool KeyRing::empty() const { return keys()->empty(); }

std::optional<Tenant> KeyRing::find(const std::string& authorization, const std::string& x_api_key) const {
  const auto ring = keys();
  if (ring->empty()) return Tenant();
  const std::string given = given_key(authorization, x_api_key);
  const ApiKey* found = nullptr;
  for (const ApiKey& key : *ring)  // all of them, whichever it is
    if (equal_in_constant_time(given, key.key)) found = &key;
  if (!found) return std::nullopt;
  const bool alone = std::ranges::all_of(*ring, [&](const ApiKey& key) { return key.key == found->key; });
  return Tenant{.id = id_of(found->key),
                .name = found->name,
                .limits = found->limits,
                .sees_all = found->admin || alone,
                .alone = alone};
}

std::vector<ApiKey> parse_keys(const std::string& content) {
  const size_t first = content.find_first_not_of(" \t\r\n");
  const bool json = first != content.npos && (content[first] == '[' || content[first] == '{');
  std::istringstream lines(content);
  return json ? read_json(content) : read_lines(lines);
}

std::vector<ApiKey> read_keys(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw Error(fmt::format("cannot open the key file '{}'", file));
  std::ostringstream all;
  all << in.rdbuf();
  std::vector<ApiKey> keys;
  try {
    keys = parse_keys(all.str());
  } catch (const Error& e) { throw Error(fmt::format("key file '{}': {}", file, e.what())); }
  if (keys.empty()) throw Error(fmt::format("there is no key in '{}'", file));
  return keys;
}

}  // namespace sx::server
