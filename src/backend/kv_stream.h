// Cells of a KV store outside of it: copied to another slot, or as a stream of bytes (count, bytes per cell, the cells,
// a checksum).
#pragma once
#include <cstddef>
#include <iosfwd>

#include "backend/backend.h"

namespace sx {

size_t saved_cells_bytes(const Backend& backend, const KvStore& kv, int count);
// The first `count` cells of a slot. Throws sx::Error when the stream takes no more.
void save_cells(Backend& backend, const KvStore& kv, int slot, int count, std::ostream& to);
// Puts saved cells at the beginning of a slot and returns how many; throws sx::Error if these are more than `most`, of
// another size or cut off.
int restore_cells(Backend& backend, KvStore& kv, int slot, int most, std::istream& from);

// The first `count` cells of a slot become those of another of the same store, shared where the backend can do that.
// False: there is no memory for them, and the other slot has none of them.
bool copy_cells(Backend& backend, KvStore& kv, int from_slot, int to_slot, int count);

// KvSharing::hold(); a store that is none has all its memory.
bool hold_cells(KvStore& kv, int slot, int first, int end);

// A text whose cells were the first `held` of a slot has been cut to `length`. Where that leaves a good deal of memory
// unused, it is given back.
void forget_cells(Backend& backend, KvStore& kv, int slot, int length, int held);

// Numbers as they lie in memory; throw sx::Error at the end of the stream.
void write_bytes(std::ostream& to, const void* bytes, size_t count);
void read_bytes(std::istream& from, void* bytes, size_t count);

}  // namespace sx
