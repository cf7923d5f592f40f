#include "engine/window_memory.h"

#include <algorithm>

namespace sx {

WindowMemory::WindowMemory(Backend& backend, KvStore& kv, std::span<const int> windows)
    : backend_(backend), kv_(kv), cells_(static_cast<size_t>(kv.geometry().slots)) {
  for (int i = 0; i < static_cast<int>(windows.size()); ++i) {
    const int window = windows[static_cast<size_t>(i)];
    if (window == 0) continue;
    widest_ = std::max(widest_, window);
    if (layers_.empty() || layers_.back().first + layers_.back().count != i) layers_.push_back({i, 0});
    ++layers_.back().count;
  }
}

int WindowMemory::begin_of(int length) const { return std::max(0, length + 1 - widest_); }

void WindowMemory::grow(SeqId seq, int length) {
  Cells& cells = at(seq);
  const int below = std::max(0, begin_of(length) - kKept) / kStep * kStep;
  if (below <= cells.freed) return;
  for (const Layers& layers : layers_)
    backend_.kv_release(
        kv_, {.slot = seq, .first_layer = layers.first, .layers = layers.count, .first = cells.freed, .end = below});
  cells.freed = below;
  cells.lost = std::max(cells.lost, below);
}

void WindowMemory::restored(SeqId seq, int length) { at(seq).lost = std::max(at(seq).lost, begin_of(length)); }

void WindowMemory::copied(SeqId seq, SeqId from) { at(seq).lost = std::max(at(seq).lost, at(from).lost); }

}  // namespace sx
