// Norms, activation, embedding and copies. See rope.cu for the rotation.
#include "backend/cuda/elementwise/norm_glu_embed.h"

#include <algorithm>

#include "backend/cuda/runtime/launch.cuh"
#include "backend/cuda/elementwise/norm_glu_embed.cuh"
#include "backend/cuda/elementwise/embedding.h"

namespace sx::cuda {
namespace {

bool aligned(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

// One block: one row, width floats read (and weights), as many written and half as many bytes again for out16. Bound:
// latency for a few rows, memory for many. Thread t owns the groups of four t, t + T, ...; `held` of them stay in
// registers, and with held == 0 they are read twice. The order of the sum depends on the width alone, which chooses the
// instance.
template <int held>
__global__ void norm_kernel(NormCall c, bool whole) {
  __shared__ float part[32];
  const int threads = blockDim.x, t = threadIdx.x, groups = (c.width + 3) / 4;
  const size_t at = size_t(blockIdx.x) * size_t(c.stride), at16 = size_t(blockIdx.x) * size_t(c.width);
  float4 weight[held > 0 ? held : 1], x[held > 0 ? held : 1];
  let_next_start();
#pragma unroll
  for (int i = 0; i < held; ++i) {  // weights never change: read while the previous kernel ends
    const int g = t + i * threads;
    weight[i] = g < groups ? load4(c.weight, 4 * g, c.width, whole) : make_float4(0, 0, 0, 0);
  }
  wait_for_previous();
  float sum = 0;
  const auto add = [&](float4 v) {
    sum = fmaf(v.x, v.x, sum), sum = fmaf(v.y, v.y, sum), sum = fmaf(v.z, v.z, sum), sum = fmaf(v.w, v.w, sum);
  };
  if constexpr (held > 0) {
#pragma unroll
    for (int i = 0; i < held; ++i) {
      const int g = t + i * threads;
      x[i] = g < groups ? load4(c.x + at, 4 * g, c.width, whole) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < held; ++i) add(x[i]);
  } else {
    for (int g = t; g < groups; g += threads) add(load4(c.x + at, 4 * g, c.width, whole));
  }
  const float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(block_sum(sum, part), float(c.width)), c.eps)));
  const auto put = [&](int g, float4 v, float4 w) {
    v.x = __fmul_rn(__fmul_rn(v.x, factor), w.x), v.y = __fmul_rn(__fmul_rn(v.y, factor), w.y);
    v.z = __fmul_rn(__fmul_rn(v.z, factor), w.z), v.w = __fmul_rn(__fmul_rn(v.w, factor), w.w);
    if (c.out) store4(c.out + at, 4 * g, c.width, whole, v);
    if (c.out16) store4_half(static_cast<uint16_t*>(c.out16) + at16, 4 * g, c.width, whole, c.half, v);
  };
  if constexpr (held > 0) {
#pragma unroll
    for (int i = 0; i < held; ++i) {
      const int g = t + i * threads;
      if (g < groups) put(g, x[i], weight[i]);
    }
  } else {
    for (int g = t; g < groups; g += threads)
      put(g, load4(c.x + at, 4 * g, c.width, whole), load4(c.weight, 4 * g, c.width, whole));
  }
}

// One block: one row of a centred norm, read three times (it lies in L1): the mean, the squares of the deviations, the
// result. Thread t owns the elements t, t + T, ...; the number of threads depends on the width alone. Bound: latency.
__global__ void centred_norm_kernel(NormCall c) {
  __shared__ float first[32], second[32];
  const int threads = blockDim.x, t = threadIdx.x;
  const size_t at = size_t(blockIdx.x) * size_t(c.stride), at16 = size_t(blockIdx.x) * size_t(c.width);
  let_next_start();
  wait_for_previous();
  float sum = 0, squares = 0;
  for (int i = t; i < c.width; i += threads) sum = __fadd_rn(sum, c.x[at + size_t(i)]);
  const float mean = __fdiv_rn(block_sum(sum, first), float(c.width));
  for (int i = t; i < c.width; i += threads) {
    const float d = __fsub_rn(c.x[at + size_t(i)], mean);
    squares = fmaf(d, d, squares);
  }
  const float factor =
      __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(block_sum(squares, second), float(c.width)), c.eps)));
  for (int i = t; i < c.width; i += threads) {  // a thread writes what it alone has read
    float v = __fmul_rn(__fmul_rn(__fsub_rn(c.x[at + size_t(i)], mean), factor), c.weight[i]);
    if (c.bias) v = __fadd_rn(v, c.bias[i]);
    if (c.out) c.out[at + size_t(i)] = v;
    if (c.out16) static_cast<uint16_t*>(c.out16)[at16 + size_t(i)] = half_bits(c.half, v);
  }
}

__device__ __forceinline__ float activate(Activation kind, float x) {
  switch (kind) {
    case Activation::kSilu: return __fdiv_rn(x, __fadd_rn(1.0f, expf(-x)));
    case Activation::kGeluTanh: {
      const float inner =
          __fmul_rn(__fmul_rn(0.7978845608028654f, x), __fadd_rn(1.0f, __fmul_rn(__fmul_rn(0.044715f, x), x)));
      return __fmul_rn(__fmul_rn(0.5f, x), __fadd_rn(1.0f, tanhf(inner)));
    }
    case Activation::kGelu:
      return __fmul_rn(__fmul_rn(0.5f, x), __fadd_rn(1.0f, erff(__fmul_rn(x, 0.7071067811865476f))));
    case Activation::kRelu2: break;
  }
  const float positive = fmaxf(x, 0.0f);
  return __fmul_rn(positive, positive);
}

// One block: 1,024 columns of one row of any activation, gated or not. Bound: memory.
__global__ void activation_kernel(GluCall c, bool whole) {
  const int i = 4 * int(blockIdx.x * blockDim.x + threadIdx.x);
  let_next_start();
  wait_for_previous();
  if (i >= c.width) return;
  const float* gate = c.gate_up + size_t(blockIdx.y) * size_t(c.width) * (c.gated ? 2 : 1);
  const size_t at = size_t(blockIdx.y) * size_t(c.width);
  float4 v = load4(gate, i, c.width, whole);
  v = make_float4(activate(c.activation, v.x), activate(c.activation, v.y), activate(c.activation, v.z),
                  activate(c.activation, v.w));
  if (c.gated) {
    const float4 u = load4(gate + c.width, i, c.width, whole);
    v = make_float4(__fmul_rn(v.x, u.x), __fmul_rn(v.y, u.y), __fmul_rn(v.z, u.z), __fmul_rn(v.w, u.w));
  }
  if (c.out) store4(c.out + at, i, c.width, whole, v);
  if (c.out16) store4_half(static_cast<uint16_t*>(c.out16) + at, i, c.width, whole, c.half, v);
}

// One block: 1,024 columns of one row, 4 bytes read and written for each. Bound: memory.
__global__ void soft_cap_kernel(SoftCapArgs c, bool whole) {
  const int i = 4 * int(blockIdx.x * blockDim.x + threadIdx.x);
  let_next_start();
  wait_for_previous();
  if (i >= c.width) return;
  float* row = c.x + size_t(blockIdx.y) * size_t(c.width);
  const auto capped = [&](float x) { return __fmul_rn(c.cap, tanhf(__fdiv_rn(x, c.cap))); };
  const float4 v = load4(row, i, c.width, whole);
  store4(row, i, c.width, whole, make_float4(capped(v.x), capped(v.y), capped(v.z), capped(v.w)));
}

// One block: 1,024 columns of one row of silu(gate) * up: 8 bytes read per column, 4 or 6 written. Bound: memory.
__global__ void glu_kernel(GluCall c, bool whole) {
  const int i = 4 * int(blockIdx.x * blockDim.x + threadIdx.x);
  let_next_start();
  wait_for_previous();
  if (i >= c.width) return;
  const float* gate = c.gate_up + size_t(blockIdx.y) * size_t(c.width) * 2;
  const size_t at = size_t(blockIdx.y) * size_t(c.width);
  const float4 g = load4(gate, i, c.width, whole), u = load4(gate + c.width, i, c.width, whole);
  const float4 v = make_float4(silu_times(g.x, u.x), silu_times(g.y, u.y), silu_times(g.z, u.z), silu_times(g.w, u.w));
  if (c.out) store4(c.out + at, i, c.width, whole, v);
  if (c.out16) store4_half(static_cast<uint16_t*>(c.out16) + at, i, c.width, whole, c.half, v);
}

// One block: 1,024 elements of one row of the table, 1 to 4 bytes read and 4 written for each. Bound: latency, or
// memory.
__global__ void embed_kernel(float* out, const Token* tokens, TableView table, bool whole) {
  const int i = 4 * int(blockIdx.x * blockDim.x + threadIdx.x), width = table.width;
  let_next_start();
  wait_for_previous();
  if (i >= width) return;
  const Token token = tokens[blockIdx.y];
  float v[4] = {};
  if (token >= 0 && token < table.rows) {
    const size_t at = size_t(token) * size_t(width);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j >= width) break;
      const size_t e = at + size_t(i + j);
      switch (table.kind) {
        case TableKind::kF32: v[j] = static_cast<const float*>(table.data)[e]; break;
        case TableKind::kF16: v[j] = f16_value(static_cast<const uint16_t*>(table.data)[e]); break;
        case TableKind::kBF16: v[j] = bf16_value(static_cast<const uint16_t*>(table.data)[e]); break;
        default: {
          const size_t sub = e / size_t(table.sub);
          v[j] = __fmul_rn(table.scale[sub], float(static_cast<const int8_t*>(table.data)[e]));
          if (table.offset) v[j] = __fadd_rn(v[j], table.offset[sub]);
        }
      }
    }
  }
  store4(out + size_t(blockIdx.y) * size_t(width), i, width, whole, make_float4(v[0], v[1], v[2], v[3]));
}

struct CopyFromDevice {
  const int32_t* which;
  __device__ int operator()(int r) const { return which ? which[r] : r; }
  __device__ int into(int r) const { return r; }
};
template <int count>
struct CopyFromLaunch {
  int32_t which[count];
  __device__ int operator()(int r) const { return which[r]; }
  __device__ int into(int r) const { return r; }
};
template <int count>
struct CopyBetweenRows {
  int32_t which[count], places[count];
  __device__ int operator()(int r) const { return which[r]; }
  __device__ int into(int r) const { return places[r]; }
};

// One block: 1,024 columns of one row: 4 bytes read (8 to add) and 4 written for each. Bound: latency, or memory.
template <class Which>
__global__ void copy_kernel(CopyCall c, const __grid_constant__ Which which, bool whole) {
  const int i = 4 * int(blockIdx.x * blockDim.x + threadIdx.x), r = blockIdx.y;
  let_next_start();
  wait_for_previous();
  if (i >= c.width) return;
  float* to = c.to + ptrdiff_t(which.into(r)) * c.to_stride;
  float4 v = load4(c.from + ptrdiff_t(which(r)) * c.from_stride, i, c.width, whole);
  if (c.scale != 1) {
    v = make_float4(__fmul_rn(v.x, c.scale), __fmul_rn(v.y, c.scale), __fmul_rn(v.z, c.scale), __fmul_rn(v.w, c.scale));
  }
  if (c.add) {
    const float4 old = load4(to, i, c.width, whole);
    v = make_float4(__fadd_rn(old.x, v.x), __fadd_rn(old.y, v.y), __fadd_rn(old.z, v.z), __fadd_rn(old.w, v.w));
  }
  store4(to, i, c.width, whole, v);
}

// One thread: four elements, 16 bytes read, 8 written. Bound: memory.
__global__ void half_kernel(uint16_t* out, Half half, const float* x, size_t count, bool whole) {
  const size_t i = 4 * (size_t(blockIdx.x) * blockDim.x + threadIdx.x);
  let_next_start();
  wait_for_previous();
  if (i >= count) return;
  const int left = int(count - i < 4 ? count - i : 4);
  const float4 v = load4(x + i, 0, left, whole && left == 4);
  store4_half(out + i, 0, left, whole && left == 4, half, v);
}

constexpr int kThreads = 256, kColumns = 4 * kThreads;  // of the element-wise kernels
constexpr int kMostRows = 65535;                        // of a grid's second dimension

// Calls body(first, rows) for pieces of the rows that fit a grid.
template <class Body>
void each_piece(int rows, Body body) {
  for (int first = 0; first < rows; first += kMostRows) body(first, std::min(kMostRows, rows - first));
}

bool copies_whole(const CopyCall& c) {
  return c.width % 4 == 0 && c.to_stride % 4 == 0 && c.from_stride % 4 == 0 && aligned(c.to, 16) && aligned(c.from, 16);
}

}  // namespace

void norm(const NormCall& call, cudaStream_t stream) {
  if (call.rows <= 0 || call.width <= 0) return;
  NormCall c = call;
  if (c.stride == 0) c.stride = c.width;
  if (c.centred) return launch(centred_norm_kernel, c.rows, c.width <= 1024 ? 256 : 1024, 0, stream, c);
  const bool whole = c.width % 4 == 0 && c.stride % 4 == 0 && aligned(c.x, 16) && aligned(c.out, 16) &&
                     aligned(c.weight, 16) && aligned(c.out16, 8);
  const int threads = norm_threads(c.width), quads = (c.width + 3) / 4;
  const auto kernel = quads <= threads ? norm_kernel<1> : quads <= 2 * threads ? norm_kernel<2> : norm_kernel<0>;
  launch(kernel, c.rows, threads, 0, stream, c, whole);
}

void glu(const GluCall& call, cudaStream_t stream) {
  const int pieces = (call.width + kColumns - 1) / kColumns;
  each_piece(call.rows, [&](int first, int rows) {
    GluCall c = call;
    const size_t at = size_t(first) * size_t(c.width);
    if (c.out) c.out += at;
    if (c.out16) c.out16 = static_cast<uint16_t*>(c.out16) + at;
    c.gate_up += (c.gated ? 2 : 1) * at, c.rows = rows;
    const bool whole = c.width % 4 == 0 && aligned(c.gate_up, 16) && aligned(c.out, 16) && aligned(c.out16, 8);
    launch(c.gated && c.activation == Activation::kSilu ? glu_kernel : activation_kernel,
           dim3(unsigned(pieces), unsigned(rows)), kThreads, 0, stream, c, whole);
  });
}

void soft_cap(const SoftCapArgs& call, cudaStream_t stream) {
  const int pieces = (call.width + kColumns - 1) / kColumns;
  each_piece(call.rows, [&](int first, int rows) {
    SoftCapArgs c = call;
    c.x += size_t(first) * size_t(c.width), c.rows = rows;
    launch(soft_cap_kernel, dim3(unsigned(pieces), unsigned(rows)), kThreads, 0, stream, c,
           c.width % 4 == 0 && aligned(c.x, 16));
  });
}

void embed(const EmbedCall& c, cudaStream_t stream) {
  const TableView table = table_view(c.table);
  const int pieces = (table.width + kColumns - 1) / kColumns;
  each_piece(c.rows, [&](int first, int rows) {
    float* out = c.out + size_t(first) * size_t(table.width);
    launch(embed_kernel, dim3(unsigned(pieces), unsigned(rows)), kThreads, 0, stream, out, c.tokens + first, table,
           table.width % 4 == 0 && aligned(out, 16));
  });
}

void copy_rows(const CopyCall& call, cudaStream_t stream) {
  const int pieces = (call.width + kColumns - 1) / kColumns;
  each_piece(call.rows, [&](int first, int rows) {
    CopyCall c = call;
    c.to += first * c.to_stride;
    if (c.which) c.which += first;
    else c.from += first * c.from_stride;
    launch(copy_kernel<CopyFromDevice>, dim3(unsigned(pieces), unsigned(rows)), kThreads, 0, stream, c,
           CopyFromDevice{c.which}, copies_whole(c));
  });
}

void copy_rows_by(const CopyCall& call, std::span<const int32_t> which, std::span<const int32_t> into,
                  cudaStream_t stream) {
  const int pieces = (call.width + kColumns - 1) / kColumns;
  CopyCall c = call;
  c.which = nullptr;
  const auto go = [&](auto rows_of, std::span<const int32_t> part, size_t first) {
    std::copy(part.begin(), part.end(), rows_of.which);
    if constexpr (requires { rows_of.places; })
      std::copy_n(into.begin() + ptrdiff_t(first), part.size(), rows_of.places);
    launch(copy_kernel<decltype(rows_of)>, dim3(unsigned(pieces), unsigned(part.size())), kThreads, 0, stream, c,
           rows_of, copies_whole(c));
  };
  const size_t most = into.empty() ? kHostRows : kHostRows / 2;  // what travels with a launch has at most 4 KB
  for (size_t first = 0; first < which.size();) {
    const auto part = which.subspan(first, std::min(which.size() - first, most));
    if (into.empty()) c.to = call.to + ptrdiff_t(first) * call.to_stride;
    if (into.empty())
      part.size() <= 64 ? go(CopyFromLaunch<64>{}, part, first) : go(CopyFromLaunch<kHostRows>{}, part, first);
    else part.size() <= 64 ? go(CopyBetweenRows<64>{}, part, first) : go(CopyBetweenRows<kHostRows / 2>{}, part, first);
    first += part.size();
  }
}

void to_half(void* out16, Half half, const float* x, size_t count, cudaStream_t stream) {
  if (count == 0) return;
  const size_t blocks = (count + kColumns - 1) / kColumns;
  launch(half_kernel, unsigned(blocks), kThreads, 0, stream, static_cast<uint16_t*>(out16), half, x, count,
         aligned(x, 16) && aligned(out16, 8));
}

}  // namespace sx::cuda
