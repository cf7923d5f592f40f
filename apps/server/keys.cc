#include "server/keys.h"

#include <fmt/format.h>
#include <specextend/error.h>

#include <fstream>

namespace sx::server {

bool equal_in_constant_time(const std::string& given, const std::string& expected) {
  unsigned differ = given.size() != expected.size();
  for (size_t i = 0; i < given.size(); ++i)
    differ |= unsigned(given[i] ^ (expected.empty() ? 0 : expected[i % expected.size()]));
  return differ == 0;
}

bool accepted(const std::vector<std::string>& keys, const std::string& authorization, const std::string& x_api_key) {
  const std::string bearer = "Bearer ";
  const std::string given = authorization.rfind(bearer, 0) == 0 ? authorization.substr(bearer.size()) : x_api_key;
  bool found = keys.empty();
  for (const std::string& key : keys) found |= equal_in_constant_time(given, key);  // all of them, whichever it is
  return found;
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
