// How much memory the K/V cells of an engine's sessions take: for servers and tools.
//
// Thread safety: only the thread that uses the engine may ask.
#pragma once
#include <cstddef>
#include <functional>

namespace sx {

class Engine;

// Bytes of the cells that sessions hold; those of drafts are not among them. All 0 where a device takes the memory of
// all sessions at once.
struct KvMemory {
  size_t shared = 0;  // in memory that sessions with a common beginning share, counted once
  size_t own = 0;     // in memory of one session
  size_t saved = 0;   // that sessions would hold besides if nothing were shared
};
KvMemory kv_memory(const Engine& engine);

// A device's memory follows what sessions hold, too. Where there is no room for cells, the engine calls this (inside
// Batch::step and most calls of sessions) until it says false; then a request ends with Finished::no_memory, and no
// other one, or a session throws NoMemory. It frees some, e.g. by truncating sessions at rest.
void on_full_memory(Engine& engine, std::function<bool()> make_room);

}  // namespace sx
