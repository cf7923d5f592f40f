// Linear layers with float weights (F32, F16, BF16), for any instruction set of simd.h: included by each kernel file,
// in its namespace. Weights stay in the file's type, interleaved [k][16 outputs]; lanes are outputs, activations are
// f32 and unrounded, each output is one chain acc = fma(w[k], x[k], acc) over ascending k whatever the number of rows.
#include "backend/cpu/linear/linear_kernels.h"
#include "backend/cpu/simd.h"

namespace sx::cpu::SX_ISA_NAMESPACE {
namespace {

constexpr int kFloatGroup = 16;
constexpr int kFloatVecs = kFloatGroup / kLanes;

LinearLayout float_layout(const LinearShape& shape, int format_base) {
  LinearLayout l;
  l.type = shape.type;
  l.format = format_base + (shape.type == DType::kF32 ? 0 : shape.type == DType::kF16 ? 1 : 2);
  l.group = kFloatGroup;
  l.in = shape.in;
  l.group_bytes = static_cast<size_t>(shape.in) * kFloatGroup * (shape.type == DType::kF32 ? 4 : 2);
  return l;
}

void float_pack(const LinearLayout& l, const LinearSource& source, std::byte* group) {
  const size_t size = l.type == DType::kF32 ? 4 : 2, in = static_cast<size_t>(l.in);
  const char* from = static_cast<const char*>(source.values);
  char* to = reinterpret_cast<char*>(group);
  for (size_t k = 0; k < in; ++k)
    for (size_t o = 0; o < kFloatGroup; ++o)
      memcpy(to + (k * kFloatGroup + o) * size, from + (o * in + k) * size, size);
}

// A 16-bit group widened to f32, for many rows.
size_t float_panel_bytes(int in) { return static_cast<size_t>(in) * kFloatGroup * 4; }

struct ReadF32 {
  using Type = float;
  SX_INLINE Vec read(const Type* p) { return load(p); }
};
struct ReadF16 {
  using Type = uint16_t;
  SX_INLINE Vec read(const Type* p) { return load_f16(p); }
};
struct ReadBF16 {
  using Type = uint16_t;
  SX_INLINE Vec read(const Type* p) { return load_bf16(p); }
};

// A group that is partly beyond the matrix.
__attribute__((noinline)) void float_finish_part(float* y, const float* t, const float* bias, int valid,
                                                 bool accumulate) {
  for (int i = 0; i < valid; ++i) {
    const float value = bias ? t[i] + bias[i] : t[i];
    y[i] = accumulate ? y[i] + value : value;
  }
}

// One row's 16 results: out = acc + bias, then old + that.
SX_INLINE void float_finish(const LinearJob& job, int group, int row, const Vec* acc) {
  float* y = job.out + static_cast<size_t>(row) * static_cast<size_t>(job.out_stride) + group * kFloatGroup;
  const int left = job.outputs - group * kFloatGroup;
  const float* bias = job.bias ? job.bias + group * kFloatGroup : nullptr;
  if (left < kFloatGroup) {
    float t[kFloatGroup];
#pragma GCC unroll 4
    for (int v = 0; v < kFloatVecs; ++v) store(t + v * kLanes, acc[v]);
    return float_finish_part(y, t, bias, left, job.accumulate);
  }
#pragma GCC unroll 4
  for (int v = 0; v < kFloatVecs; ++v) {
    Vec value = acc[v];
    if (bias) value = add(value, load(bias + v * kLanes));
    if (job.accumulate) value = add(load(y + v * kLanes), value);
    store(y + v * kLanes, value);
  }
}

// One inner value of one group: acc[r] = fma(w, x[r][i], acc[r]) for R rows.
template <class Read, int R, int i>
SX_INLINE void float_step(const typename Read::Type* w, const Four* x, Vec (*acc)[kFloatVecs]) {
#pragma GCC unroll 4
  for (int v = 0; v < kFloatVecs; ++v) {
    const Vec b = Read::read(w + i * kFloatGroup + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][v] = fma_at<i>(b, x[r], acc[r][v]);
  }
}

// G groups, `step` apart, x R rows. Independent chains: G * R * kFloatVecs. w: the first group.
template <class Read, int G, int R>
__attribute__((noinline)) void float_tile(const LinearJob& job, const typename Read::Type* w, int group, int step,
                                          int row) {
  const int in = job.layout->in;
  const size_t apart = static_cast<size_t>(step) * job.layout->group_bytes / sizeof(typename Read::Type);
  const float* x = job.x + static_cast<size_t>(row) * static_cast<size_t>(in);
  Vec acc[G][R][kFloatVecs];
#pragma GCC unroll 16
  for (int i = 0; i < G * R * kFloatVecs; ++i) acc[i / (R * kFloatVecs)][i / kFloatVecs % R][i % kFloatVecs] = zero();
  int k = 0;
  for (; k + 4 <= in; k += 4, w += 4 * kFloatGroup) {
    Four xs[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) xs[r] = load_four(x + static_cast<size_t>(r) * static_cast<size_t>(in) + k);
#pragma GCC unroll 2
    for (int g = 0; g < G; ++g) {
      const typename Read::Type* wg = w + static_cast<size_t>(g) * apart;
      float_step<Read, R, 0>(wg, xs, acc[g]), float_step<Read, R, 1>(wg, xs, acc[g]);
      float_step<Read, R, 2>(wg, xs, acc[g]), float_step<Read, R, 3>(wg, xs, acc[g]);
    }
  }
  for (; k < in; ++k, w += kFloatGroup) {
    Four xs[R];
    float last[R][4] = {};
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      last[r][0] = x[static_cast<size_t>(r) * static_cast<size_t>(in) + static_cast<size_t>(k)],
      xs[r] = load_four(last[r]);
#pragma GCC unroll 2
    for (int g = 0; g < G; ++g) float_step<Read, R, 0>(w + static_cast<size_t>(g) * apart, xs, acc[g]);
  }
#pragma GCC unroll 2
  for (int g = 0; g < G; ++g)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) float_finish(job, group + g * step, row + r, acc[g][r]);
}

constexpr int kFloatRows = 64;       // rows that share a pass over the groups; their activations stay in L2
constexpr int kFloatPanelRows = 12;  // from so many rows on widening a group once pays

template <class Read>
void float_rows(const LinearJob& job, const typename Read::Type* w, int group, int from, int to) {
  int r = from;
  for (; r + 4 <= to; r += 4) float_tile<Read, 1, 4>(job, w, group, 0, r);
  for (; r + 2 <= to; r += 2) float_tile<Read, 1, 2>(job, w, group, 0, r);
  if (r < to) float_tile<Read, 1, 1>(job, w, group, 0, r);
}

template <class Read>
__attribute__((noinline)) void float_widen(const typename Read::Type* w, int in, float* panel) {
  for (size_t i = 0; i < static_cast<size_t>(in) * kFloatGroup; i += kLanes) store(panel + i, Read::read(w + i));
}

template <class Read>
void float_run_type(const LinearJob& job) {
  using Type = typename Read::Type;
  auto weights = [&](int group) {
    return reinterpret_cast<const Type*>(job.weights + static_cast<size_t>(group) * job.layout->group_bytes);
  };
  if (job.rows == 1) {
    const int half = (job.last - job.first) / 2;  // two streams of memory
    for (int g = job.first; g < job.first + half; ++g) float_tile<Read, 2, 1>(job, weights(g), g, half, 0);
    if ((job.last - job.first) % 2) float_tile<Read, 1, 1>(job, weights(job.last - 1), job.last - 1, 0, 0);
    return;
  }
  for (int from = 0; from < job.rows; from += kFloatRows) {
    const int to = job.rows < from + kFloatRows ? job.rows : from + kFloatRows;
    for (int g = job.first; g < job.last; ++g) {
      if (sizeof(Type) == 2 && to - from >= kFloatPanelRows) {  // the same values, so the same bits
        float* panel = reinterpret_cast<float*>(job.panel);
        float_widen<Read>(weights(g), job.layout->in, panel);
        float_rows<ReadF32>(job, panel, g, from, to);
      } else {
        float_rows<Read>(job, weights(g), g, from, to);
      }
    }
  }
}

void float_run(const LinearJob& job, int format_base) {
  switch (job.layout->format - format_base) {
    case 0: float_run_type<ReadF32>(job); break;
    case 1: float_run_type<ReadF16>(job); break;
    default: float_run_type<ReadBF16>(job); break;
  }
}

}  // namespace
}  // namespace sx::cpu::SX_ISA_NAMESPACE
