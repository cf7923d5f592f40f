// KV cells: the store, moves between stores, cells as bytes, chunk scores for retrieval, and retrieval itself.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "backend/backend.h"
#include "backend/cuda/runtime/device.h"
#include "backend/cuda/runtime/views.h"
#include "backend/kv_sharing.h"

namespace sx::cuda {

class UnitPool;

// Its memory comes in units and follows use (KvUnits), or is taken at once.
class CudaKv : public KvStore, public KvSharing {
 public:
  // Throws on types other than BF16, F16, Q8_0, Q4_0 and Q4_1. `pool`: where units come from; null: the memory is
  // taken at once, as it is where the pool does not serve.
  CudaKv(const KvGeometry& geometry, DeviceMemory& memory, const std::shared_ptr<UnitPool>& pool = nullptr,
         cudaStream_t stream = nullptr);
  ~CudaKv() override;
  size_t bytes() const override { return bytes_; }
  bool share(int from, int to, int cells) override;
  void leave(int slot) override { cut(slot, 0); }
  void cut(int slot, int cells) override;
  bool hold(int slot, int first, int end) override;
  KvUse use() const override;
  bool follows_use() const { return units_ != nullptr; }
  const KvView& view() const { return view_; }
  // Of a packed store: where one layer of it is widened, a store of one layer and of 16 bits.
  const KvView& tile() const { return tile_; }

 private:
  struct Units;
  void reserve(DeviceMemory& memory, const std::shared_ptr<UnitPool>& pool, cudaStream_t stream);
  void take(DeviceMemory& memory);
  void bind() const;
  KvView view_, tile_{};
  size_t bytes_ = 0;
  std::unique_ptr<Units> units_;
};

struct MoveCall {
  KvView from, to;
  int from_slot, to_slot;
  std::span<const KvMove> moves;  // host memory; done as if in order
  const double* frequencies;      // device, or null
  int dims;
  RopeStyle style;
  int layer, head;  // -1: all
};
void kv_move(const MoveCall& call, cudaStream_t stream);

struct CellsCall {
  KvView kv;
  int slot, first, count;
  std::byte* packed;  // [count][packed_cell_bytes], pinned memory of the host that the device can reach
};
size_t packed_cell_bytes(const KvView& kv);  // a multiple of 4
void copy_cells(const CellsCall& call, bool write, cudaStream_t stream);

inline constexpr int kMostScoreLayers = 8, kMostFresh = 96;
struct ScoreCall {
  float* out;      // [layers, heads, chunks], device; null: only the mean is wanted
  const float* q;  // [layers, heads * head_dim], device
  int heads, kv_heads, head_dim;
  float scale;
  KvView kv;
  int layer, slot;         // the first layer
  int32_t* borders;        // [chunks + 1], device
  int chunks, first, end;  // borders[0] and borders[chunks]
  ScoreKind kind;
  int layers = 1;                         // up to kMostScoreLayers
  int others[kMostScoreLayers - 1] = {};  // the layers behind the first
  float* mean = nullptr;                  // [chunks], device: the sum over layers and heads divided by their number
  // Borders from this one on are here and not yet in `borders`, where they are put. Not for kBound. Borders change at
  // their end, and a copy to the device takes longer than these few bytes.
  int kept = INT32_MAX;
  int32_t fresh[kMostFresh] = {};
  int chunk = 0;  // not 0: the length of all chunks but the last, and borders is not needed by score_pieces()
};
size_t score_scratch_bytes(int heads, int context, int layers = 1);
void kv_score(const ScoreCall& call, void* scratch, cudaStream_t stream);

// From where cells are moved to where, and how their keys are rotated.
struct Where {
  KvView from, to;
  int from_slot, to_slot, first_layer, first_head, heads;
  const double* frequencies;  // device, or null
  int dims;
  RopeStyle style;
};

// The choice among chunks of one length by their scores, and the gather of their cells; see KvRetrieveArgs.
inline constexpr int kMostRetrieveChunks = 8192;
struct RetrieveCall {
  const float* scores;    // [chunks], device
  int chunk, cells;       // length of all chunks but the last; cells of all chunks
  int first, last, take;  // chunks [0, first), the `take` best of [first, last), and those from `last` on
  bool per_cell;          // scores are divided by the length
  unsigned* done;         // device, 0 between calls: counts the blocks of score_pieces()
  int32_t* chosen;        // [count], device: the cells of all places
  int count;              // (first + take - last) * chunk + cells
  // Places below `held` hold these cells: `before`, [listed], device, and then those from `since` on, at shift_before.
  const int32_t* before;
  int listed, held, since;
  bool compact;  // positions are place - shift, between 0 and `top`; otherwise those of the text
  int shift, shift_before, top;
  Where where;  // all layers and heads
};
void choose_chunks(const RetrieveCall& call, cudaStream_t stream);
void gather(const RetrieveCall& call, cudaStream_t stream);

// The same where each layer and key/value head chooses for itself: `chosen` is [layers, kv_heads, count], and nothing
// is held from before. choose_heads() does some layers, from first_layer on, by the scores of their query heads.
struct HeadScores {
  const float* scores;  // [layers, heads, chunks], device
  float* means;         // [layers, kv_heads, chunks], device: working memory
  int first_layer, layers, heads, kv_heads, chunks;
};
void choose_heads(const RetrieveCall& call, const HeadScores& scores, cudaStream_t stream);
void gather_heads(const RetrieveCall& call, int layers, cudaStream_t stream);

// The mean alone, of chunks of one length: faster than kv_score(), and not to the bit the same. `then`: and the choice.
bool scores_in_pieces(const ScoreCall& call);
size_t pieces_scratch_bytes(int heads, int context, int layers);
void score_pieces(const ScoreCall& call, void* scratch, cudaStream_t stream, const RetrieveCall* then = nullptr);

}  // namespace sx::cuda
