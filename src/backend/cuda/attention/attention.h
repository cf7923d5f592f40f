// Attention over the KV cache: decode and verification (a tree behind a history), and prefill (a chain). See README.md.
#pragma once
#include "backend/cuda/runtime/device.h"
#include "backend/cuda/runtime/views.h"

namespace sx::cuda {

struct AttendCall {
  float* out;   // [rows, heads * head_dim]
  void* out16;  // the same as `half`, or null
  Half half;
  const float* q;  // [rows, q_stride], columns [0, heads * head_dim), rotated
  int q_stride;
  int heads, kv_heads, head_dim;
  float scale;
  int window;          // 0: all
  float soft_cap;      // 0: none
  const float* sinks;  // [heads] or null
  KvView kv;
  int layer;
  StepView step;
  int rows, tiles;  // padded
  int history;  // no sequence of the step has a longer one (rounded up by the caller, so that graphs serve many steps)
};

// Trees: the depth of a row below its history is at most this, so that all cells before its last two blocks are
// history.
inline constexpr int kMaxDepth = 63;

size_t attend_scratch_bytes(int rows, int heads, int head_dim, int context);
void attend_rows(const AttendCall& call, void* scratch, cudaStream_t stream);

// A chain of `rows` rows from row `first_row` of q and out on, behind `history` committed cells; their own K/V are in
// the store.
struct PromptAttendCall {
  float* out;   // [.., heads * head_dim]
  void* out16;  // the same as `half`, or null
  Half half;
  const float* q;  // [.., q_stride], rotated
  int q_stride;
  int heads, kv_heads, head_dim;
  float scale;
  int window;
  float soft_cap;
  const float* sinks;
  KvView kv;
  int layer, slot, first_row, rows, history;
};
size_t attend_prompt_scratch_bytes(int rows, int heads, int head_dim);
void attend_prompt(const PromptAttendCall& call, void* scratch, cudaStream_t stream);

}  // namespace sx::cuda
