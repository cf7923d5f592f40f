// kv_score() of the CPU backend: what one query sees in each chunk of a history. See score.cc for how the work is cut.
#pragma once
#include <cstddef>

#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "base/memory.h"
#include "base/thread_pool.h"

namespace sx::cpu {

// Working memory of kv_score(). Grows in reserve() only.
class ScoreScratch {
 public:
  // Enough for a query and a history within `limits`; earlier reservations stay covered.
  void reserve(const StepLimits& limits);

 private:
  friend void kv_score(const KvScoreArgs&, Isa, ThreadPool&, ScoreScratch&);
  Pages maxima_;   // [heads, chunks] floats, log2 units
  Pages queries_;  // packed, per lot of heads
};

void kv_score(const KvScoreArgs& args, Isa isa, ThreadPool& pool, ScoreScratch& scratch);

}  // namespace sx::cpu
