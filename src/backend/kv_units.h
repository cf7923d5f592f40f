// Which memory lies behind the cells of a KV store whose addresses are reserved and whose memory comes in units of a
// device (2 MiB and more). Addresses never move, so kernels and recorded steps know nothing of this; memory is mapped
// before an op that writes cells and given back when a text is cut, and slots with a common prefix map the same units.
// Whoever writes to a unit of several slots gets a copy of it first. This is bookkeeping only, done between ops by the
// one thread that uses a backend; a UnitMapper does what it decides, so that tests can do without a device.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/kv_sharing.h"

namespace sx {

// Addresses are bytes from the beginning of the store's range, multiples of a unit where units are meant.
class UnitMapper {
 public:
  using Unit = uint64_t;
  virtual ~UnitMapper() = default;
  // Units that nobody has. It may ask stores for their spare ones (KvUnits::give_spare) first. False: not so many are
  // left, and none is taken.
  virtual bool take(std::span<Unit> units) = 0;
  virtual void give(std::span<const Unit> units) = 0;  // which are mapped nowhere
  virtual void map(size_t at, std::span<const Unit> units) = 0;
  virtual void unmap(size_t at, size_t count) = 0;  // when the ops under way are done
  // In the order of the ops.
  virtual void clear(size_t at, size_t bytes) = 0;
  virtual void copy(size_t to, size_t from, size_t bytes) = 0;
};

// A store is one or more arrays of [slots][blocks of cells]; a block's cells lie together in each of them.
struct UnitShape {
  struct Array {
    size_t at = 0, slot_bytes = 0, block_bytes = 0;  // slot_bytes: a multiple of the unit
    bool lasts = true;  // false: every op writes what it reads, so that there is nothing to share
  };
  int slots = 0, block_cells = 0;
  size_t unit = 0;    // bytes
  size_t window = 0;  // addresses of one unit, to copy through
  size_t spare = 0;   // bytes that slots may keep though their texts were cut, so that the next need not map them again
  std::vector<Array> arrays{};
};

class KvUnits {
 public:
  KvUnits(UnitShape shape, UnitMapper& mapper);
  ~KvUnits();
  KvUnits(const KvUnits&) = delete;
  KvUnits& operator=(const KvUnits&) = delete;

  // Memory for the cells [0, end) of a slot, of which nobody else has those from `first` on; who only reads says
  // first == end. New memory is zeros, or what this slot wrote before.
  // False: there is not enough; the cells of the slot are as before, and it holds no more than before.
  bool hold(int slot, int first, int end) {
    const Slot& s = slots_[size_t(slot)];
    return (first >= std::min(s.same, end) && end <= s.needed * shape_.block_cells) || hold_more(slot, first, end);
  }
  // The first `cells` cells of a slot become those of another: whole units are shared, the rest is copied. What the
  // other held is forgotten. False: there is no memory for the rest, and the other slot holds nothing.
  bool share(int from, int to, int cells);
  // The slot needs no more than its first `cells` cells. What only it has behind them may stay as spare memory.
  void cut(int slot, int cells);
  // Spare memory of all slots goes back.
  void give_spare();

  KvUse use() const;  // without spare memory

 private:
  struct Slot {
    std::vector<std::vector<int>> units;  // of each array, places in units_; those that are mapped
    int blocks = 0, needed = 0;           // that have memory; those of them that are no spare memory
    int same = 0;                         // cells: from here on the slot shares no unit
  };
  struct Shared {
    UnitMapper::Unit unit = 0;
    int users = 0;
  };
  size_t units_for(const UnitShape::Array& array, int blocks) const {
    return (size_t(blocks) * array.block_bytes + shape_.unit - 1) / shape_.unit;
  }
  size_t place(const UnitShape::Array& array, int slot, size_t unit) const {
    return array.at + size_t(slot) * array.slot_bytes + unit * shape_.unit;
  }
  int blocks_for(int cells) const { return (cells + shape_.block_cells - 1) / shape_.block_cells; }
  bool hold_more(int slot, int first, int end);
  bool grow(int slot, int blocks);
  bool make_own(int slot, int first, int end);
  bool replace(size_t array, int slot, size_t unit);
  void append(size_t array, int slot, std::span<const UnitMapper::Unit> units);
  void leave(size_t array, int slot, size_t count);
  bool may_keep(int slot) const;
  size_t spare_units(const Slot& slot) const;
  void trim(int slot);

  const UnitShape shape_;
  UnitMapper& mapper_;
  std::vector<Slot> slots_;
  std::vector<Shared> units_;
  std::vector<int> unused_;  // of units_
};

}  // namespace sx
