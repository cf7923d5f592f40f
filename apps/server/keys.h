// API keys.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace sx::server {

// Takes the same time wherever two texts differ.
bool equal_in_constant_time(const std::string& given, const std::string& expected);

// Whether one of the keys was sent, as "Authorization: Bearer KEY" or "X-Api-Key: KEY". Without keys everybody may.
bool accepted(const std::vector<std::string>& keys, const std::string& authorization, const std::string& x_api_key);

// Whose texts a request may share: a number made of the key it was sent with, the same in every process. 0: the server
// has no keys. The request must have been accepted.
uint64_t scope_of(const std::vector<std::string>& keys, const std::string& authorization, const std::string& x_api_key);

// The keys of a file, one per line; empty lines and those that begin with '#' do not count. Throws sx::Error.
std::vector<std::string> read_keys(const std::string& file);

}  // namespace sx::server
