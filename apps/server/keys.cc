#include "server/keys.h"

#include <fmt/format.h>
#include <specextend/error.h>

#include <fstream>

namespace sx::server {
namespace {

std::string given_key(const std::string& authorization, const std::string& x_api_key) {
  const std::string bearer = "Bearer ";
  return authorization.rfind(bearer, 0) == 0 ? authorization.substr(bearer.size()) : x_api_key;
}

}  // namespace

bool equal_in_constant_time(const std::string& given, const std::string& expected) {
  unsigned differ = given.size() != expected.size();
  for (size_t i = 0; i < given.size(); ++i)
    differ |= unsigned(given[i] ^ (expected.empty() ? 0 : expected[i % expected.size()]));
  return differ == 0;
}

bool accepted(const std::vector<std::string>& keys, const std::string& authorization, const std::string& x_api_key) {
  const std::string given = given_key(authorization, x_api_key);
  bool found = keys.empty();
  for (const std::string& key : keys) found |= equal_in_constant_time(given, key);  // all of them, whichever it is
  return found;
}

uint64_t scope_of(const std::vector<std::string>& keys, const std::string& authorization,
                  const std::string& x_api_key) {
  if (keys.empty()) return 0;
  uint64_t scope = 0xcbf29ce484222325;  // FNV-1a: keys are the operator's, nobody can choose two that collide
  for (char c : given_key(authorization, x_api_key)) scope = (scope ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  scope = (scope ^ scope >> 32) * 0x9e3779b97f4a7c15;  // neighbouring keys do not look it
  scope ^= scope >> 29;
  return scope == 0 ? 1 : scope;
}

std::vector<std::string> read_keys(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw Error(fmt::format("cannot open the key file '{}'", file));
  std::vector<std::string> keys;
  for (std::string line; std::getline(in, line);) {
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (!line.empty() && line[0] != '#') keys.push_back(line);
  }
  if (keys.empty()) throw Error(fmt::format("there is no key in '{}'", file));
  return keys;
}

}  // namespace sx::server
