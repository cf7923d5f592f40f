// The room that the bodies of requests may take in memory, all together. Each is an owner's, a key's or an address's,
// and no owner gets more than half of it, so that there is room for the others. Thread-safe.
#pragma once
#include <cstddef>
#include <map>
#include <mutex>
#include <string>

namespace sx::server {

class BodyRoom {
 public:
  explicit BodyRoom(size_t bytes) : bytes_(bytes) {}

  enum class Room { kYes, kShareFull, kFull };
  // Counts bytes of a body that are there already, and says whether there is room for them.
  Room add(const std::string& owner, size_t bytes);
  void remove(const std::string& owner, size_t bytes);  // that were counted

 private:
  size_t share() const { return bytes_ / 2; }
  void set(const std::string& owner, size_t bytes);

  const size_t bytes_;
  std::mutex mutex_;
  std::map<std::string, size_t> owners_;  // bytes of each
  size_t all_ = 0;                        // the sum of them, of nobody more than a share
};

}  // namespace sx::server
