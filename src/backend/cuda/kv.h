// Moving cells between stores, cells as bytes, and scoring the chunks of a history with a query.
#pragma once
#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/views.h"

namespace sx::cuda {

class CudaKv : public KvStore {
 public:
  CudaKv(const KvGeometry& geometry, DeviceMemory& memory);  // throws on types other than BF16, F16 and Q8_0
  size_t bytes() const override { return bytes_; }
  const KvView& view() const { return view_; }

 private:
  KvView view_;
  size_t bytes_;
};

struct MoveCall {
  KvView from, to;
  int from_slot, to_slot;
  std::span<const KvMove> moves;   // host memory; done as if in order
  const double* frequencies;       // device, or null
  int dims;
  RopeStyle style;
  int layer, head;                 // -1: all
};
void kv_move(const MoveCall& call, cudaStream_t stream);

struct CellsCall {
  KvView kv;
  int slot, first, count;
  std::byte* packed;               // [count][packed_cell_bytes], pinned memory of the host that the device can reach
};
size_t packed_cell_bytes(const KvView& kv);  // a multiple of 4
void copy_cells(const CellsCall& call, bool write, cudaStream_t stream);

inline constexpr int kMostScoreLayers = 8, kMostFresh = 96;
struct ScoreCall {
  float* out;                      // [layers, heads, chunks], device; null: only the mean is wanted
  const float* q;                  // [layers, heads * head_dim], device
  int heads, kv_heads, head_dim;
  float scale;
  KvView kv;
  int layer, slot;                 // the first layer
  int32_t* borders;                // [chunks + 1], device
  int chunks, first, end;          // borders[0] and borders[chunks]
  ScoreKind kind;
  int layers = 1;                  // up to kMostScoreLayers
  int others[kMostScoreLayers - 1] = {};  // the layers behind the first
  float* mean = nullptr;           // [chunks], device: the sum over layers and heads divided by their number
  // Borders from this one on are here and not yet in `borders`, where they are put. Not for kBound. Borders change at
  // their end, and a copy to the device takes longer than these few bytes.
  int kept = INT32_MAX;
  int32_t fresh[kMostFresh] = {};
};
size_t score_scratch_bytes(int heads, int context, int layers = 1);
void kv_score(const ScoreCall& call, void* scratch, cudaStream_t stream);

}  // namespace sx::cuda
