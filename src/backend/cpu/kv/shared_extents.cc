#include "backend/cpu/kv/shared_extents.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/memory.h"

namespace sx::cpu {
namespace {

constexpr size_t kPage = 4096;  // what the copy looks at: no system has smaller pages

bool all_zero(const std::byte* page) { return page[0] == std::byte{} && std::memcmp(page, page + 1, kPage - 1) == 0; }

}  // namespace

SharedExtents::SharedExtents(const ExtentShape& shape, std::vector<int> nodes)
    : shape_(shape), slots_(static_cast<size_t>(shape.slots)), nodes_(std::move(nodes)) {
  SX_ASSERT(shape.bytes % kPage == 0);
  for (Slot& slot : slots_) slot.snapshot.assign(static_cast<size_t>(shape.extents), kNone);
  if (shape.slots > 1) open_file();  // now, so that the number of descriptors does not depend on what is asked
}

SharedExtents::~SharedExtents() {
  if (file_ >= 0) ::close(file_);
}

std::byte* SharedExtents::place(int slot, int extent) const {
  return shape_.memory + static_cast<size_t>(slot * shape_.extents + extent) * shape_.bytes;
}

bool SharedExtents::open_file() {
  if (file_ < 0) file_ = ::memfd_create("specextend-kv", MFD_CLOEXEC);
  return file_ >= 0;
}

bool SharedExtents::map(int slot, int first, int count, int snapshot) {
  void* const at = place(slot, first);
  return ::mmap(at, static_cast<size_t>(count) * shape_.bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file_, static_cast<off_t>(offset(snapshot))) == at;
}

bool SharedExtents::map_own(int slot, int extent) {
  void* const at = place(slot, extent);
  if (::mmap(at, shape_.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE, -1,
             0) != at)
    return false;
  spread(at);
  return true;
}

void SharedExtents::spread(void* at) const {
  if (nodes_.size() > 1) interleave(static_cast<std::byte*>(at), shape_.bytes, nodes_);
}

void SharedExtents::leave(int snapshot) {
  if (snapshot == kNone || --snapshots_[static_cast<size_t>(snapshot)].users > 0) return;
  ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset(snapshot)),
              static_cast<off_t>(shape_.bytes));
}

// Pages that hold nothing but zeros (cells that were never written, or given back) stay holes of the file.
int SharedExtents::take_snapshot(const std::byte* from, int cells, ThreadPool* pool) {
  size_t snapshot = 0;
  while (snapshot < snapshots_.size() && snapshots_[snapshot].users > 0) ++snapshot;
  if (snapshot == snapshots_.size()) {
    if (::ftruncate(file_, static_cast<off_t>((snapshot + 1) * shape_.bytes)) != 0) return kNone;
    snapshots_.emplace_back();
  }
  void* const map = ::mmap(nullptr, shape_.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_,
                           static_cast<off_t>(snapshot * shape_.bytes));
  if (map == MAP_FAILED) return kNone;
  spread(map);  // a file in memory keeps it, for those who map it privately and write to it, too
  auto* const to = static_cast<std::byte*>(map);
  const size_t pages = shape_.bytes / kPage;
  const int parts = pool ? pool->size() : 1;
  const auto copy = [&](int part) {
    const auto t = static_cast<size_t>(part), n = static_cast<size_t>(parts);
    for (size_t i = pages * t / n; i < pages * (t + 1) / n; ++i)
      if (!all_zero(from + i * kPage)) std::memcpy(to + i * kPage, from + i * kPage, kPage);
  };
  if (pool) pool->run(copy);
  else copy(0);
  ::munmap(map, shape_.bytes);
  snapshots_[snapshot] = {.users = 1, .cells = cells};
  return static_cast<int>(snapshot);
}

bool SharedExtents::share(int from, int to, int cells, ThreadPool* pool) {
  SX_ASSERT(from != to && cells > 0);
  if (!open_file()) return false;
  Slot &giver = slots_[static_cast<size_t>(from)], &taker = slots_[static_cast<size_t>(to)];
  const int wanted = (cells - 1) / shape_.cells + 1;  // extents
  // The giver's extents that are not, or no longer, those of a snapshot. All of an extent becomes the snapshot, also
  // what the giver has not committed yet.
  if (giver.same < cells)
    for (int e = giver.same / shape_.cells; e < wanted; ++e) {
      const int taken = take_snapshot(place(from, e), std::clamp(giver.end - e * shape_.cells, 0, shape_.cells), pool);
      if (taken == kNone) return false;
      if (!map(from, e, 1, taken)) return leave(taken), false;
      leave(std::exchange(giver.snapshot[static_cast<size_t>(e)], taken));
      giver.same = (e + 1) * shape_.cells;
    }

  release({.slot = to, .first = 0, .end = taker.end, .at = 0, .bytes = shape_.bytes});
  for (int e = 0, n; e < wanted; e += n) {
    const int first = giver.snapshot[static_cast<size_t>(e)];
    for (n = 1; e + n < wanted && giver.snapshot[static_cast<size_t>(e + n)] == first + n;) ++n;
    if (!map(to, e, n, first)) return false;  // the taker has memory all the same, for a copy
    for (int i = 0; i < n; ++i) {
      ++snapshots_[static_cast<size_t>(first + i)].users;
      leave(std::exchange(taker.snapshot[static_cast<size_t>(e + i)], first + i));
    }
  }
  // A text that shares its beginning mostly ends soon behind it: there a huge page would stay mostly empty.
  if (wanted < shape_.extents) ::madvise(place(to, wanted), shape_.bytes, MADV_NOHUGEPAGE);
  taker.same = wanted * shape_.cells;
  taker.end = std::max(taker.end, cells);
  return true;
}

void SharedExtents::release(const Release& what) {
  Slot& s = slots_[static_cast<size_t>(what.slot)];
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = (what.at + page - 1) / page * page, stop = (what.at + what.bytes) / page * page;
  const bool whole = what.bytes == shape_.bytes, rest = whole && what.end >= s.end;
  const int first = (what.first + shape_.cells - 1) / shape_.cells;
  const int end = rest ? (s.end + shape_.cells - 1) / shape_.cells : what.end / shape_.cells;
  for (int e = first; e < end; ++e) {
    int& snapshot = s.snapshot[static_cast<size_t>(e)];
    if (snapshot == kNone && what.only_snapshots) continue;
    if (whole && snapshot != kNone) {
      if (!map_own(what.slot, e)) continue;
      leave(std::exchange(snapshot, kNone));
    } else if (begin < stop) {
      ::madvise(place(what.slot, e) + begin, stop - begin, MADV_DONTNEED);
      if (snapshot != kNone && snapshots_[static_cast<size_t>(snapshot)].users == 1)
        ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset(snapshot) + begin),
                    static_cast<off_t>(stop - begin));
    }
    if (whole) ::madvise(place(what.slot, e), shape_.bytes, MADV_HUGEPAGE);
  }
  if (!whole) return;
  s.same = std::min(s.same, first * shape_.cells);
  if (rest && !what.only_snapshots) s.end = std::min(s.end, first * shape_.cells);
}

size_t SharedExtents::shared_bytes() const {
  size_t cells = 0;
  for (const Snapshot& s : snapshots_)
    if (s.users > 0) cells += static_cast<size_t>(s.cells);
  return cells * cell_bytes();
}

size_t SharedExtents::own_bytes() const {
  size_t cells = 0;
  for (const Slot& s : slots_)
    for (int e = 0; e * shape_.cells < s.end; ++e) {  // what was written over a snapshot is the slot's own as well
      const int first = e * shape_.cells, end = std::min(s.end, first + shape_.cells);
      const int own = s.snapshot[static_cast<size_t>(e)] == kNone ? first : std::max(first, s.same);
      cells += static_cast<size_t>(std::max(0, end - own));
    }
  return cells * cell_bytes();
}

size_t SharedExtents::saved_bytes() const {
  size_t cells = 0;
  for (const Slot& s : slots_) cells += static_cast<size_t>(std::min(s.same, s.end));
  const size_t bytes = cells * cell_bytes(), once = shared_bytes();
  return bytes > once ? bytes - once : 0;
}

}  // namespace sx::cpu
