// Answers of /v1/responses that later requests go on from: in memory, within a limit, apart for each API key.
#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace sx::server {

class ResponseStore {
 public:
  struct Entry {
    std::string id, response;  // JSON, as it was answered
    std::string items;         // JSON, the list of all items of the conversation, with those of the answer
    size_t bytes() const { return id.size() + response.size() + items.size(); }
  };
  // Of each key. An entry that is too large for itself is not kept.
  explicit ResponseStore(size_t entries = 256, size_t bytes = size_t(32) << 20) : entries_(entries), bytes_(bytes) {}
  void keep(uint64_t scope, Entry entry);  // drops those that were used least recently
  std::optional<Entry> find(uint64_t scope, const std::string& id);
  bool erase(uint64_t scope, const std::string& id);

 private:
  struct Shelf {
    std::list<Entry> entries;  // the most recently used first
    size_t bytes = 0;
  };
  static std::list<Entry>::iterator find_in(Shelf& shelf, const std::string& id);

  const size_t entries_, bytes_;
  std::mutex mutex_;
  std::map<uint64_t, Shelf> shelves_;  // by key
};

}  // namespace sx::server
