// Physical memory that slots of a KV store share. Addresses stay as they are: a slot's cells are contiguous, and no
// kernel knows about sharing. The extents of a common prefix are copied once into a file that lies in memory (a
// snapshot), and every slot that has the prefix maps the snapshot privately. So all of them read one copy, and the
// system copies a page when one of them writes to it. What nobody shares stays in memory of its own, in huge pages.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/thread_pool.h"

namespace sx::cpu {

// Extents as they lie in memory: [slot][extent].
struct ExtentShape {
  std::byte* memory = nullptr;  // at the beginning of a page
  int slots = 0, extents = 0;   // extents of a slot
  int cells = 0;                // of an extent
  size_t bytes = 0;             // of an extent, whole pages
};

class SharedExtents {
 public:
  // nodes: memory nodes that pages come from alternately, if there are several.
  explicit SharedExtents(const ExtentShape& shape, std::vector<int> nodes = {});
  ~SharedExtents();
  SharedExtents(const SharedExtents&) = delete;
  SharedExtents& operator=(const SharedExtents&) = delete;

  // The first `cells` cells of a slot become those of another, whose own are forgotten. False: the system refuses, and
  // the other slot holds nothing.
  bool share(int from, int to, int cells, ThreadPool* pool);
  // Cells [first, end) of the slot are about to be written.
  void written(int slot, int first, int end) {
    Slot& s = slots_[static_cast<size_t>(slot)];
    s.same = std::min(s.same, first);
    s.end = std::max(s.end, end);
  }
  // Gives back the memory of the extents that lie in the cells [first, end): bytes [at, at + bytes) of each. Other
  // slots keep what they share.
  struct Release {
    int slot, first, end;
    size_t at, bytes;
    bool only_snapshots = false;  // memory of its own stays
  };
  void release(const Release& what);

  // Bytes of cells that slots hold: in snapshots, each counted once, and in memory of their own; and those that the
  // slots would hold besides if nothing were shared.
  size_t shared_bytes() const;
  size_t own_bytes() const;
  size_t saved_bytes() const;

 private:
  static constexpr int kNone = -1;
  struct Slot {
    std::vector<int> snapshot;  // of each extent; kNone: memory of its own
    int same = 0;               // cells below this are those of the snapshots
    int end = 0;                // cells from this on have not been written since their memory was given back
  };
  struct Snapshot {
    int users = 0;
    int cells = 0;  // that the first user had written when it was taken
  };
  std::byte* place(int slot, int extent) const;
  size_t offset(int snapshot) const { return static_cast<size_t>(snapshot) * shape_.bytes; }
  bool open_file();
  size_t cell_bytes() const { return shape_.bytes / static_cast<size_t>(shape_.cells); }
  int take_snapshot(const std::byte* from, int cells, ThreadPool* pool);
  bool map(int slot, int first, int count, int snapshot);  // consecutive extents and snapshots
  bool map_own(int slot, int extent);
  void spread(void* at) const;  // an extent that has been mapped anew: it comes without the wish for memory nodes
  void leave(int snapshot);

  ExtentShape shape_;
  int file_ = -1;
  std::vector<Slot> slots_;
  std::vector<Snapshot> snapshots_;
  const std::vector<int> nodes_;
};

}  // namespace sx::cpu
