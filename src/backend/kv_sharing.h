// What a KV store can do whose slots share physical memory. A store that cannot is no KvSharing; its cells are copied.
#pragma once
#include <cstddef>

namespace sx {

// Bytes of cells that slots hold.
struct KvUse {
  size_t shared = 0;  // in memory that several slots may read, counted once
  size_t own = 0;     // in memory of one slot
  size_t saved = 0;   // that they would hold besides if nothing were shared
};

class KvSharing {
 public:
  virtual ~KvSharing() = default;
  // The first `cells` cells of a slot become those of another without a copy; a slot that writes to them later gets its
  // own. What else the other slot held is forgotten. False: it cannot, and the caller moves them.
  virtual bool share(int from, int to, int cells) = 0;
  // A slot whose text begins anew leaves what it shares with others.
  virtual void leave(int slot) = 0;
  // No more than the first `cells` cells of a slot are needed: memory behind them may be given back.
  virtual void cut(int slot, int cells) { (void)slot, (void)cells; }
  // Memory for the cells [0, end) of a slot, of which those from `first` on are about to be written. Ops ask for it
  // themselves; who asks before knows whether they can. False: there is none.
  virtual bool hold(int slot, int first, int end) { return (void)slot, (void)first, (void)end, true; }
  virtual KvUse use() const = 0;
};

}  // namespace sx
