// Batch-invariant attention of the CPU backend: writes K/V cells, attends, moves cells. A row's bits depend on its
// query, the cells it sees and its index only; see attention.cc for how the work is cut.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kv/store.h"
#include "base/memory.h"
#include "base/thread_pool.h"

namespace sx::cpu {

struct AttentionPlan;

// Working memory of attend(). Grows in reserve() only.
class AttentionScratch {
 public:
  AttentionScratch();
  ~AttentionScratch();
  AttentionScratch(AttentionScratch&&) noexcept;
  AttentionScratch& operator=(AttentionScratch&&) noexcept;
  // Enough for steps within `limits` on `threads` threads; earlier reservations stay covered.
  void reserve(const StepLimits& limits, int threads);

 private:
  friend void attend(const AttendArgs&, Isa, ThreadPool&, AttentionScratch&);
  std::unique_ptr<AttentionPlan> plan_;
};

// Norms (if weights are given) and rotates q and k, writes K and V to cell history + uncommitted + i of each sequence's
// slot.
void rope_store(const RopeStoreArgs& args, Isa isa, ThreadPool& pool);
void attend(const AttendArgs& args, Isa isa, ThreadPool& pool, AttentionScratch& scratch);
void kv_move(const KvMoveArgs& args, Isa isa, ThreadPool& pool);
// Cells as bytes, see Backend.
size_t kv_cell_bytes(const CpuKvStore& kv);
void kv_read(const CpuKvStore& kv, const KvCellsArgs& args, std::byte* out, ThreadPool& pool);
void kv_write(CpuKvStore& kv, const KvCellsArgs& args, const std::byte* from, ThreadPool& pool);

}  // namespace sx::cpu
