// API keys: who asks, and how much of the server that key may have.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace sx::server {

struct KeyLimits {
  double weight = 1;              // its share where several keys wait
  int max_running = 0;            // requests that run at a time, further ones wait; 0: no bound
  int max_waiting = 0;            // requests that wait, further ones get status 429; 0: no bound
  int64_t tokens_per_minute = 0;  // of prompts and answers, on average; 0: no bound
};

struct ApiKey {
  std::string name, key;
  KeyLimits limits{};
  bool admin = false;  // sees what concerns all keys
};

// Who asks.
struct Tenant {
  uint64_t id = 0;     // made of the key, the same in every process; 0: the server has no keys
  std::string name{};  // of the key; empty: the server has no keys
  KeyLimits limits{};
  // What all requests together have and do: counters, cells, memory. Of several keys only admins see it: a key could
  // work out from it how long another's texts are.
  bool sees_all = true;
  bool alone = true;  // there is no other key
};

// Takes the same time wherever two texts differ.
bool equal_in_constant_time(const std::string& given, const std::string& expected);

// The keys of a server, which may be replaced while it runs.
class KeyRing {
 public:
  explicit KeyRing(std::vector<ApiKey> keys = {});
  void replace(std::vector<ApiKey> keys);
  bool empty() const;
  // Whose key was sent, as "Authorization: Bearer KEY" or "X-Api-Key: KEY". Without keys everybody is the same tenant.
  std::optional<Tenant> find(const std::string& authorization, const std::string& x_api_key) const;

 private:
  std::shared_ptr<const std::vector<ApiKey>> keys() const;
  mutable std::mutex mutex_;
  std::shared_ptr<const std::vector<ApiKey>> keys_;
};

// The keys of a file: a JSON list of {"name", "key", "weight", "max_running", "max_waiting", "tokens_per_minute",
// "admin"}, or one key per line, where empty lines and those that begin with '#' do not count. Throws sx::Error that
// names the file, and never a key.
std::vector<ApiKey> read_keys(const std::string& file);
std::vector<ApiKey> parse_keys(const std::string& content);  // the same for the text of such a file; may be none

}  // namespace sx::server
