// Places in a text, in bytes.
#pragma once
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace sx::server {

using Places = std::vector<std::pair<size_t, size_t>>;  // from and to, ascending and apart

// A place that begins where the last one ends becomes one with it.
inline void add_place(Places& places, size_t from, size_t to) {
  if (from == to) return;
  if (places.empty() || places.back().second < from) places.emplace_back(from, from);
  places.back().second = to;
}

// Whether what ends there is in one of the places.
inline bool is_in(const Places& places, size_t end) {
  return std::ranges::any_of(places, [end](const auto& place) { return place.first < end && end <= place.second; });
}

// How much of the text up to `end` is in none of the places.
inline size_t bytes_outside(const Places& places, size_t end) {
  size_t bytes = end;
  for (const auto& [from, to] : places) bytes -= std::min(to, end) - std::min(from, end);
  return bytes;
}

}  // namespace sx::server
