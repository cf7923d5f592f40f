#include "backend/kv_units.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace sx {

KvUnits::KvUnits(UnitShape shape, UnitMapper& mapper)
    : shape_(std::move(shape)), mapper_(mapper), slots_(size_t(shape_.slots)) {
  SX_ASSERT(shape_.slots > 0 && shape_.block_cells > 0 && shape_.unit > 0 && !shape_.arrays.empty());
  for (const UnitShape::Array& array : shape_.arrays)
    SX_ASSERT(array.at % shape_.unit == 0 && array.slot_bytes % shape_.unit == 0);
  for (Slot& slot : slots_) slot.units.resize(shape_.arrays.size());
}

KvUnits::~KvUnits() {
  try {
    for (int slot = 0; slot < shape_.slots; ++slot) slots_[size_t(slot)].needed = 0, trim(slot);
  } catch (const std::exception&) {}  // the device is lost, and its memory with it
}

bool KvUnits::hold_more(int slot, int first, int end) {
  const int before = slots_[size_t(slot)].needed;
  if (!grow(slot, blocks_for(end))) return false;
  if (first >= end || first >= slots_[size_t(slot)].same || make_own(slot, first, end)) return true;
  cut(slot, before * shape_.block_cells);  // what it has got meanwhile others may need
  return false;
}

// All arrays or none.
bool KvUnits::grow(int slot, int blocks) {
  Slot& s = slots_[size_t(slot)];
  const int before = s.needed;
  s.needed = std::max(before, std::min(blocks, s.blocks));
  if (blocks <= s.blocks) return true;
  size_t wanted = 0;
  for (size_t a = 0; a < shape_.arrays.size(); ++a) {
    SX_ASSERT(size_t(blocks) * shape_.arrays[a].block_bytes <= shape_.arrays[a].slot_bytes);
    wanted += units_for(shape_.arrays[a], blocks) - s.units[a].size();
  }
  std::vector<UnitMapper::Unit> units(wanted);
  if (!mapper_.take(units)) return s.needed = before, false;
  for (size_t a = 0, taken = 0; a < shape_.arrays.size(); ++a) {
    const UnitShape::Array& array = shape_.arrays[a];
    const size_t held = s.units[a].size(), count = units_for(array, blocks) - held;
    if (count == 0) continue;
    append(a, slot, std::span(units).subspan(taken, count));
    mapper_.clear(place(array, slot, held), count * shape_.unit);
    taken += count;
  }
  s.blocks = s.needed = blocks;
  return true;
}

// Maps units behind those that the slot has.
void KvUnits::append(size_t array, int slot, std::span<const UnitMapper::Unit> units) {
  std::vector<int>& list = slots_[size_t(slot)].units[array];
  mapper_.map(place(shape_.arrays[array], slot, list.size()), units);
  for (const UnitMapper::Unit unit : units) {
    if (unused_.empty()) unused_.push_back(int(units_.size())), units_.emplace_back();
    list.push_back(unused_.back());
    units_[size_t(unused_.back())] = {unit, 1};
    unused_.pop_back();
  }
}

// Unmaps all but the first `count` units of an array of the slot.
void KvUnits::leave(size_t array, int slot, size_t count) {
  std::vector<int>& list = slots_[size_t(slot)].units[array];
  if (list.size() <= count) return;
  mapper_.unmap(place(shape_.arrays[array], slot, count), list.size() - count);
  std::vector<UnitMapper::Unit> free;
  for (size_t i = count; i < list.size(); ++i) {
    Shared& shared = units_[size_t(list[i])];
    if (--shared.users > 0) continue;
    free.push_back(shared.unit);
    unused_.push_back(list[i]);
  }
  list.resize(count);
  mapper_.give(free);
}

bool KvUnits::make_own(int slot, int first, int end) {
  for (size_t a = 0; a < shape_.arrays.size(); ++a) {
    const UnitShape::Array& array = shape_.arrays[a];
    if (!array.lasts) continue;
    const size_t begin = size_t(first / shape_.block_cells) * array.block_bytes / shape_.unit;
    for (size_t unit = begin; unit < units_for(array, blocks_for(end)); ++unit)
      if (units_[size_t(slots_[size_t(slot)].units[a][unit])].users > 1 && !replace(a, slot, unit)) return false;
  }
  return true;
}

// The slot gets a copy of a unit that others have, too.
bool KvUnits::replace(size_t array, int slot, size_t unit) {
  UnitMapper::Unit fresh = 0;
  if (!mapper_.take({&fresh, 1})) return false;
  const size_t at = place(shape_.arrays[array], slot, unit);
  mapper_.map(shape_.window, {&fresh, 1});
  mapper_.copy(shape_.window, at, shape_.unit);
  mapper_.unmap(shape_.window, 1);
  mapper_.unmap(at, 1);
  mapper_.map(at, {&fresh, 1});
  int& known = slots_[size_t(slot)].units[array][unit];
  --units_[size_t(known)].users;
  if (unused_.empty()) unused_.push_back(int(units_.size())), units_.emplace_back();
  known = unused_.back();
  units_[size_t(known)] = {fresh, 1};
  unused_.pop_back();
  return true;
}

bool KvUnits::share(int from, int to, int cells) {
  SX_ASSERT(from != to && cells > 0);
  slots_[size_t(to)].needed = 0, trim(to);
  Slot &giver = slots_[size_t(from)], &taker = slots_[size_t(to)];
  const int blocks = blocks_for(cells), whole = cells / shape_.block_cells;  // blocks that nobody has to write again
  if (blocks > giver.needed) return false;
  const auto shared = [&](const UnitShape::Array& array) {
    return array.lasts ? size_t(whole) * array.block_bytes / shape_.unit : 0;
  };
  size_t wanted = 0;
  for (const UnitShape::Array& array : shape_.arrays) wanted += units_for(array, blocks) - shared(array);
  std::vector<UnitMapper::Unit> own(wanted), others;
  if (!mapper_.take(own)) return false;
  for (size_t a = 0, taken = 0; a < shape_.arrays.size(); ++a) {
    const UnitShape::Array& array = shape_.arrays[a];
    const size_t same = shared(array), count = units_for(array, blocks) - same;
    others.clear();
    for (size_t i = 0; i < same; ++i) {
      const int unit = giver.units[a][i];
      others.push_back(units_[size_t(unit)].unit);
      ++units_[size_t(unit)].users;
      taker.units[a].push_back(unit);
    }
    if (same > 0) mapper_.map(place(array, to, 0), others);
    if (count == 0) continue;
    append(a, to, std::span(own).subspan(taken, count));
    taken += count;
    const size_t rest = size_t(blocks) * array.block_bytes - same * shape_.unit;
    if (array.lasts) mapper_.copy(place(array, to, same), place(array, from, same), rest);
    const size_t known = array.lasts ? rest : 0;
    if (known < count * shape_.unit) mapper_.clear(place(array, to, same) + known, count * shape_.unit - known);
  }
  taker.blocks = taker.needed = blocks;
  taker.same = whole * shape_.block_cells;
  giver.same = std::max(giver.same, taker.same);
  return true;
}

void KvUnits::cut(int slot, int cells) {
  Slot& s = slots_[size_t(slot)];
  const int blocks = blocks_for(cells);
  if (blocks >= s.needed) return;
  s.needed = blocks;
  if (!may_keep(slot)) trim(slot);
  if (blocks == 0) s.same = 0;  // else the last unit may be that of others, and reach behind the text
}

// Whether what lies behind the blocks that the slot needs is nobody else's, and no slots keep too much.
bool KvUnits::may_keep(int slot) const {
  size_t spare = 0;
  for (const Slot& each : slots_) spare += spare_units(each);
  if (spare * shape_.unit > shape_.spare) return false;
  const Slot& s = slots_[size_t(slot)];
  for (size_t a = 0; a < shape_.arrays.size(); ++a)
    for (size_t i = units_for(shape_.arrays[a], s.needed); i < s.units[a].size(); ++i)
      if (units_[size_t(s.units[a][i])].users > 1) return false;
  return true;
}

size_t KvUnits::spare_units(const Slot& slot) const {
  size_t count = 0;
  for (size_t a = 0; a < shape_.arrays.size(); ++a)
    count += slot.units[a].size() - units_for(shape_.arrays[a], slot.needed);
  return count;
}

void KvUnits::trim(int slot) {
  Slot& s = slots_[size_t(slot)];
  for (size_t a = 0; a < shape_.arrays.size(); ++a) leave(a, slot, units_for(shape_.arrays[a], s.needed));
  s.blocks = s.needed;
  if (s.needed == 0) s.same = 0;
}

void KvUnits::give_spare() {
  for (int slot = 0; slot < shape_.slots; ++slot) trim(slot);
}

KvUse KvUnits::use() const {
  KvUse use;
  for (const Shared& unit : units_) {
    if (unit.users == 1) use.own += shape_.unit;
    if (unit.users < 2) continue;
    use.shared += shape_.unit;
    use.saved += size_t(unit.users - 1) * shape_.unit;
  }
  for (const Slot& slot : slots_) use.own -= spare_units(slot) * shape_.unit;
  return use;
}

}  // namespace sx
