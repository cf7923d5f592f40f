// Portable split-KV decode: the split plan, and the combine kernel that folds the partial states into the result.
#include <algorithm>

#include "backend/cuda/attention/decode_mma.cuh"
#include "backend/cuda/runtime/launch.cuh"

namespace sx::cuda {

namespace {

constexpr int kNodes =
    32;  // states folded per round of the combine (attend_finish); a multiple of the spans of a split group
constexpr int kSectionSpans = kSectionBlocks / kSpanBlocks;

struct AttendFinish {
  float* out;
  void* out16;
  Half half;
  int width;  // of a row of out
  const RowInfo* rows;
  int row_count, range_heads, first_head;
  int units, unit_blocks, window;
  const float* state_o;
  const float2* state_ml;
  const float* sinks;  // of all heads, or null
};

struct State {
  float m = minus_infinity(), l = 0, o = 0;
  __device__ void merge(const State& newer) {
    const MergeScales scales = merge_states(m, l, newer.m, newer.l);
    o = merge_values(o, newer.o, scales);
  }
};

// The state of KV split (unit) u; loads of several states are in flight at once.
template <int D>
__device__ __forceinline__ State load_state(const AttendFinish& call, int unit, int row, int head, int column) {
  const size_t at = (size_t(unit) * size_t(call.row_count) + size_t(row)) * size_t(call.range_heads) + size_t(head);
  State state;
  const float2 ml = __ldcg(call.state_ml + at);
  state.m = ml.x;
  state.l = ml.y;
  state.o = __ldcg(call.state_o + at * D + column);
  return state;
}

// The fold of those of a node's kFan KV splits that the row sees. A node of one split is that split.
template <int D, int kFan>
__device__ __forceinline__ State load_node(const AttendFinish& call, int node, int first, int end, int row, int head,
                                           int column) {
  State states[kFan];
#pragma unroll
  for (int i = 0; i < kFan; ++i) {
    const int unit = node * kFan + i;
    if (unit >= first && unit < end) states[i] = load_state<D>(call, unit, row, head, column);
  }
  if constexpr (kFan == 1) return states[0];
  State state;
#pragma unroll
  for (int i = 0; i < kFan; ++i) state.merge(states[i]);
  return state;
}

// The combine. One block: one row and head. Groups of D threads make nodes (spans of single blocks, split groups of
// spans, split groups); then the first group folds the nodes in order, and the tail last. A block reads 4 (D + 2) bytes
// per split, mostly from L2; bound by latency.
template <int D>
__global__ void attend_finish(const AttendFinish call) {
  __shared__ float node_o[kNodes][D];
  __shared__ float2 node_ml[kNodes];
  let_next_start();
  const int row = int(blockIdx.x), head = int(blockIdx.y), column = int(threadIdx.x) % D, group = int(threadIdx.x) / D;
  const int groups = int(blockDim.x) / D;
  const RowInfo info = call.rows[row];
  wait_for_previous();
  if (info.slot < 0) return;
  const int unit_cells = call.unit_blocks * kAttendBlock;
  const int low = first_seen(info.index, call.window), limit = body_end(info.index);
  const int first = low / unit_cells, end = low < limit ? (limit + unit_cells - 1) / unit_cells : 0;
  const int fan = call.unit_blocks == 1 ? kSpanBlocks : call.unit_blocks == kSpanBlocks ? kSectionSpans : 1;
  const int first_node = first / fan, end_node = (end + fan - 1) / fan;
  const State tail = load_state<D>(call, call.units, row, head, column);
  State total, section;
  for (int base = first_node / kNodes * kNodes; base < end_node; base += kNodes) {
    const int from = max(base, first_node), to = min(base + kNodes, end_node);
    for (int node = from + group; node < to; node += groups) {
      State state;
      if (fan == kSpanBlocks) state = load_node<D, kSpanBlocks>(call, node, first, end, row, head, column);
      else if (fan == kSectionSpans) state = load_node<D, kSectionSpans>(call, node, first, end, row, head, column);
      else state = load_node<D, 1>(call, node, first, end, row, head, column);
      node_o[node - base][column] = state.o;
      if (column == 0) node_ml[node - base] = make_float2(state.m, state.l);
    }
    __syncthreads();
    if (group == 0) {
#pragma unroll 4
      for (int node = from; node < to; ++node) {
        State state;
        state.m = node_ml[node - base].x;
        state.l = node_ml[node - base].y;
        state.o = node_o[node - base][column];
        if (fan == kSpanBlocks) {
          section.merge(state);
          if ((node + 1) % kSectionSpans == 0 || node + 1 == end_node) {
            total.merge(section);
            section = State();
          }
        } else {
          total.merge(state);
        }
      }
    }
    __syncthreads();
  }
  if (group != 0) return;
  total.merge(tail);
  if (call.sinks != nullptr) {
    total.o = __fmul_rn(total.o, add_sink(total.m, total.l, call.sinks[call.first_head + head]));
  }
  const float result = __fdiv_rn(total.o, total.l);
  const size_t at = size_t(row) * size_t(call.width) + size_t(call.first_head + head) * D + size_t(column);
  call.out[at] = result;
  if (call.out16 != nullptr) store_half(call.out16, call.half, at, result);
}

bool has_fast_path(int head_dim) { return head_dim == 64 || head_dim == 96 || head_dim == 128 || head_dim == 256; }

// Blocks of the body of the longest row behind `history` cells.
int body_blocks(int history) { return body_end(history + kMaxDepth) / kAttendBlock; }

// Partial states of some rows and heads, including the slot of the tail.
size_t state_bytes(int rows, int heads, int head_dim, int units) {
  return size_t(rows) * size_t(heads) * (size_t(units) + 1) * (size_t(head_dim) + 2) * sizeof(float);
}

struct Plan {
  AttendSplit split;
  int parts, unit_blocks, units;
};

// All of these choices are for speed only. Few query rows per tile of rows: one tile of 16; a KV split is a single
// block while that is at most a few thread blocks per SM, else a span. Many: 64 query rows (32 of 256 columns) per
// thread block; whole split groups (sections) when they alone fill the device, since states are written per split. If
// the states do not fit the scratch: split groups, and a range of kv heads at a time.
Plan plan_split(const AttendCall& call) {
  constexpr int kSms = 132;
  const int group = call.heads / call.kv_heads;
  const int queries = std::min(call.rows, kTileRows) * group;
  const int blocks = body_blocks(call.history);
  const bool few = queries <= 16 || call.rows <= 2 * call.tiles;
  Plan plan;
  plan.split.head_dim = call.head_dim;
  plan.split.tiles = few ? 1 : call.head_dim == 256 ? 2 : 4;
  const int pieces = std::max(call.tiles, divide_up(call.rows * group, 16 * plan.split.tiles)) * call.kv_heads;
  const bool sections_fill = divide_up(blocks, kSectionBlocks) * pieces >= 3 * kSms / 2;
  if (blocks * pieces <= (few ? 8 : 2) * kSms) plan.unit_blocks = 1;
  else plan.unit_blocks = !few && call.head_dim != 256 && sections_fill ? kSectionBlocks : kSpanBlocks;

  const size_t limit = attend_scratch_bytes(call.rows, call.heads, call.head_dim, call.history);
  plan.units = divide_up(blocks, plan.unit_blocks);
  if (state_bytes(call.rows, call.heads, call.head_dim, plan.units) > limit) plan.unit_blocks = kSectionBlocks;
  // Sections exist for 64 query rows, of 256 columns for 16.
  if (plan.unit_blocks == kSectionBlocks) plan.split.tiles = call.head_dim == 256 ? 1 : 4;
  plan.units = divide_up(blocks, plan.unit_blocks);
  plan.parts = divide_up(queries, 16 * plan.split.tiles);
  const size_t per_head = state_bytes(call.rows, group, call.head_dim, plan.units);
  plan.split.range_kv_heads = int(std::clamp<size_t>(limit / per_head, 1, size_t(call.kv_heads)));
  return plan;
}

template <int D>
void launch_finish(const AttendFinish& finish, cudaStream_t stream) {
  const int fan = finish.unit_blocks == 1 ? kSpanBlocks : finish.unit_blocks == kSpanBlocks ? kSectionSpans : 1;
  const int groups = std::clamp(divide_up(finish.units, fan), 1, std::max(1, 512 / D));
  const dim3 grid(unsigned(finish.row_count), unsigned(finish.range_heads));
  launch(attend_finish<D>, grid, dim3(unsigned(groups * D)), 0, stream, finish);
}

void launch_range(const AttendCall& call, const Plan& plan, int first_kv_head, int kv_heads, void* scratch,
                  cudaStream_t stream) {
  const int group = call.heads / call.kv_heads;
  const size_t layer = size_t(call.layer) * call.kv.layer_cells();
  const size_t element = call.kv.type == DType::kQ8_0 ? 1 : 2;
  AttendBody body{};
  body.k = call.kv.k + layer * size_t(call.head_dim) * element;
  body.v = call.kv.v + layer * size_t(call.head_dim) * element;
  if (call.kv.type == DType::kQ8_0) {
    body.k_scale = call.kv.k_scale + layer * size_t(call.head_dim / 32);
    body.v_scale = call.kv.v_scale + layer * size_t(call.head_dim / 32);
  }
  body.block_cells = uint32_t(call.kv.block_cells());
  body.slot_cells = call.kv.slot_cells();
  body.q = call.q;
  body.q_stride = call.q_stride;
  body.rows = call.step.rows;
  body.ancestors = call.step.ancestors;
  body.tiles = call.step.tiles;
  body.row_count = call.rows;
  body.tile_count = call.tiles;
  body.parts = plan.parts;
  body.units = plan.units;
  body.unit_blocks = plan.unit_blocks;
  body.group = group;
  body.first_kv_head = first_kv_head;
  body.range_heads = kv_heads * group;
  body.scale_log2 = call.scale * kLog2E;
  body.window = call.window;
  body.soft_cap = call.soft_cap;
  body.state_o = static_cast<float*>(scratch);
  const size_t states = size_t(plan.units + 1) * size_t(call.rows) * size_t(body.range_heads);
  body.state_ml = reinterpret_cast<float2*>(body.state_o + states * size_t(call.head_dim));
  AttendSplit split = plan.split;
  split.range_kv_heads = kv_heads;
  if (call.kv.type == DType::kBF16) attend_body_bf16(body, split, stream);
  else if (call.kv.type == DType::kF16) attend_body_f16(body, split, stream);
  else attend_body_q8(body, split, stream);

  AttendFinish finish{};
  finish.out = call.out;
  finish.out16 = call.out16;
  finish.half = call.half;
  finish.width = call.heads * call.head_dim;
  finish.rows = call.step.rows;
  finish.row_count = call.rows;
  finish.range_heads = body.range_heads;
  finish.first_head = first_kv_head * group;
  finish.units = plan.units;
  finish.unit_blocks = plan.unit_blocks;
  finish.window = call.window;
  finish.state_o = body.state_o;
  finish.state_ml = body.state_ml;
  finish.sinks = call.sinks;
  switch (call.head_dim) {
    case 64: return launch_finish<64>(finish, stream);
    case 96: return launch_finish<96>(finish, stream);
    case 128: return launch_finish<128>(finish, stream);
    default: return launch_finish<256>(finish, stream);
  }
}

}  // namespace

// Room for single blocks of all rows, but no more than 128 MiB, unless the splits of one kv head (16 query heads) need
// more. The size grows with every argument, so that a smaller step fits what a larger one asked for.
size_t attend_scratch_bytes(int rows, int heads, int head_dim, int context) {
  if (!has_fast_path(head_dim)) return 256;
  constexpr size_t kEnough = size_t(128) << 20;
  const int blocks = body_blocks(context);
  const size_t all = state_bytes(rows, heads, head_dim, blocks);
  const size_t least = state_bytes(rows, std::min(heads, 16), head_dim, units_of_blocks(blocks));
  return (std::min(all, std::max(kEnough, least)) + 255) / 256 * 256;
}

void attend_rows(const AttendCall& call, void* scratch, cudaStream_t stream) {
  if (call.rows == 0) return;
  if (!has_fast_path(call.head_dim) || call.heads / call.kv_heads > 16) return attend_any(call, stream);
  if (serves_hopper(call)) return attend_rows_hopper(call, scratch, stream);
  const Plan plan = plan_split(call);
  for (int first = 0; first < call.kv_heads; first += plan.split.range_kv_heads) {
    launch_range(call, plan, first, std::min(plan.split.range_kv_heads, call.kv_heads - first), scratch, stream);
  }
}

}  // namespace sx::cuda
