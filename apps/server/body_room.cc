#include "server/body_room.h"

#include <algorithm>

namespace sx::server {

// What an owner has beyond its share (small bodies, which are always taken) fills no other's room.
void BodyRoom::set(const std::string& owner, size_t bytes) {
  const auto found = owners_.try_emplace(owner, 0).first;
  all_ -= std::min(found->second, share());
  all_ += std::min(bytes, share());
  found->second = bytes;
  if (bytes == 0) owners_.erase(found);
}

BodyRoom::Room BodyRoom::add(const std::string& owner, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = owners_.find(owner);
  const size_t own = bytes + (found == owners_.end() ? 0 : found->second);
  set(owner, own);
  return own > share() ? Room::kShareFull : all_ > bytes_ ? Room::kFull : Room::kYes;
}

void BodyRoom::remove(const std::string& owner, size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (const auto found = owners_.find(owner); found != owners_.end()) set(owner, found->second - bytes);
}

}  // namespace sx::server
