#include "server/response_store.h"

#include <algorithm>

namespace sx::server {

std::list<ResponseStore::Entry>::iterator ResponseStore::find_in(Shelf& shelf, const std::string& id) {
  return std::ranges::find_if(shelf.entries, [&](const Entry& entry) { return entry.id == id; });
}

void ResponseStore::keep(uint64_t scope, Entry entry) {
  if (entry.bytes() > bytes_) return;
  const std::lock_guard lock(mutex_);
  Shelf& shelf = shelves_[scope];
  shelf.bytes += entry.bytes();
  shelf.entries.push_front(std::move(entry));
  while (shelf.entries.size() > entries_ || shelf.bytes > bytes_) {
    shelf.bytes -= shelf.entries.back().bytes();
    shelf.entries.pop_back();
  }
}

std::optional<ResponseStore::Entry> ResponseStore::find(uint64_t scope, const std::string& id) {
  const std::lock_guard lock(mutex_);
  Shelf& shelf = shelves_[scope];
  const auto found = find_in(shelf, id);
  if (found == shelf.entries.end()) return {};
  shelf.entries.splice(shelf.entries.begin(), shelf.entries, found);
  return *found;
}

bool ResponseStore::erase(uint64_t scope, const std::string& id) {
  const std::lock_guard lock(mutex_);
  Shelf& shelf = shelves_[scope];
  const auto found = find_in(shelf, id);
  if (found == shelf.entries.end()) return false;
  shelf.bytes -= found->bytes();
  shelf.entries.erase(found);
  return true;
}

}  // namespace sx::server
