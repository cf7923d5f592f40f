#include "server/connections.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace sx::server {
namespace {

// What a connection may take before it is cut off for another one: until its client sends a head, and then a body or
// reads.
constexpr auto kHeaderDeadline = std::chrono::milliseconds(200), kStaleDeadline = std::chrono::milliseconds(2000);
constexpr size_t kShare =
    128;  // one in so many is cut off at a time: looking for them takes as long as looking for one

}  // namespace

Connections::Room Connections::room(const std::string& address) {
  const std::lock_guard lock(mutex_);
  const auto own = addresses_.find(address);
  const bool bounded = bounds_.per_address < bounds_.all;
  if (bounded && own != addresses_.end() && own->second >= bounds_.per_address)
    return shed(&address, 1) ? Room::kYes : Room::kNever;
  if (all_.size() - shed_ < bounds_.all) return Room::kYes;
  return shed(nullptr, 1 + bounds_.all / kShare) ? Room::kYes : Room::kLater;
}

void Connections::make_room() {
  const std::lock_guard lock(mutex_);
  shed(nullptr, 1 + all_.size() / kShare);
}

Connections::Handle Connections::add(const std::string& address, std::function<void()> cut) {
  const std::lock_guard lock(mutex_);
  ++addresses_[address];
  return all_.insert(all_.end(), Entry{.address = address, .cut = std::move(cut)});
}

void Connections::remove(Handle entry) {
  const std::lock_guard lock(mutex_);
  const auto own = addresses_.find(entry->address);
  if (--own->second == 0) addresses_.erase(own);
  shed_ -= entry->ending;
  all_.erase(entry);
  changed_.notify_all();
}

void Connections::set_blocked(Handle entry, bool blocked) {
  const std::lock_guard lock(mutex_);
  entry->blocked = blocked;
}

void Connections::set_writing(Handle entry, bool writing) {
  const std::lock_guard lock(mutex_);
  entry->blocked = writing;
  entry->since = Clock::now();
}

void Connections::set_asked(Handle entry, bool asked) {
  const std::lock_guard lock(mutex_);
  entry->asked = asked;
  entry->since = Clock::now();
}

bool Connections::shed(const std::string* address, size_t count) {
  const auto now = Clock::now();
  std::unordered_map<std::string_view, std::vector<Entry*>> idle;
  for (Entry& entry : all_) {
    if (address && entry.address != *address) continue;
    if (!entry.ending && entry.blocked && now - entry.since >= (entry.asked ? kStaleDeadline : kHeaderDeadline))
      idle[entry.address].push_back(&entry);
  }
  std::vector<Entry*>* most = nullptr;
  for (auto& [name, entries] : idle)
    if (!most || entries.size() > most->size()) most = &entries;
  if (!most) return false;
  std::ranges::sort(*most, {}, &Entry::since);
  most->resize(std::min(count, most->size()));
  for (Entry* entry : *most) {
    entry->ending = true;
    ++shed_;
    entry->cut();
  }
  return true;
}

void Connections::begin_ending() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  for (const Entry& entry : all_)
    if (!entry.asked) entry.cut();
}

bool Connections::ending() const {
  const std::lock_guard lock(mutex_);
  return ending_;
}

bool Connections::wait_until_none(Clock::time_point end) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, end, [&] { return all_.empty(); });
}

size_t Connections::size() const {
  const std::lock_guard lock(mutex_);
  return all_.size();
}

}  // namespace sx::server
