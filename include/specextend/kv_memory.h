// How much memory the K/V cells of an engine's sessions take: for servers and tools.
//
// Thread safety: only the thread that uses the engine may ask.
#pragma once
#include <cstddef>

namespace sx {

class Engine;

// Bytes of the cells that sessions hold; those of drafts are not among them. All 0 on a device.
struct KvMemory {
  size_t shared = 0;  // in memory that sessions with a common beginning share, counted once
  size_t own = 0;     // in memory of one session
  size_t saved = 0;   // that sessions would hold besides if nothing were shared
};
KvMemory kv_memory(const Engine& engine);

}  // namespace sx
