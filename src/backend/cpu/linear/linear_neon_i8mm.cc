// Quantised linear layers with Arm's 8-bit matrix instructions (smmla: 2 x 8 by 8 x 2), Neoverse-V1 in mind.
//
// Eight outputs travel together (a group). A group-block is 32 inner values of them: scales [32 / sub][8], offsets
// likewise (if the type has any), then the quants. A 16-byte operand is 2 outputs x 8 inner values.
// This file has types whose quants are bytes, [4 pairs of outputs][4 operands], and whose activations have a scale dx
// per 32 values, sx = dx * sum, two rows to an operand. Types with a scale per 64: linear_i8mm_super.inl.
//
// Bounds on two cores at 2.6 GHz: one row is bound by memory (65-70 GB/s); many rows by vector instructions, 8 for each
// 2 x 2 x 32 tile without offsets, 4 of them smmla: 666 Gop/s.
#define SX_ISA_NAMESPACE neon_i8mm
#define SX_BYTES_ONLY 1
#include "backend/cpu/linear/linear_kernels.h"

#if defined(__ARM_FEATURE_MATMUL_INT8)
#include <arm_neon.h>
#include <string.h>

namespace sx::cpu::neon_i8mm {
namespace {
constexpr int kGroup = 8;
constexpr bool kAlwaysWide = false;
}  // namespace
}  // namespace sx::cpu::neon_i8mm

#include "backend/cpu/linear/linear_formats.inl"

namespace sx::cpu::neon_i8mm {
namespace {

#define SX_KERNEL __attribute__((noinline))

template <class F>
void pack_quants(uint8_t* quants, const int8_t* source, size_t padded) {
  for (int o = 0; o < 8; ++o)
    for (int i = 0; i < 32; ++i)
      quants[64 * (o / 2) + 16 * (i / 8) + 8 * (o % 2) + i % 8] =
          static_cast<uint8_t>(source[static_cast<size_t>(o) * padded + static_cast<size_t>(i)]);
}

// ---- activations -----------------------------------------------------------------------------------------------------
// Two rows of a block: operands of 8 inner values each, [row][8]; scales as [r0 r1 r0 r1], as smmla(weights, rows) has
// it.
struct alignas(16) ActBlock {
  int8_t q[4][16];
  float dx[4], sx[4];
};

// A row's 32 values. A row with an infinity or NaN gets q = 0 and a scale that makes its results NaN.
inline void quantise_32(const float* x, int row, ActBlock* out) {
  float32x4_t v[8], a = vdupq_n_f32(0);
  for (int j = 0; j < 8; ++j) v[j] = vld1q_f32(x + 4 * j), a = vmaxq_f32(a, vabsq_f32(v[j]));
  const float top = vmaxvq_f32(a), dx = top / 127, inverse = top >= 0x1p-100f ? 127 / top : 0;
  int32x4_t sum = vdupq_n_s32(0);
  for (int j = 0; j < 8; j += 2) {
    const int32x4_t p = vcvtnq_s32_f32(vmulq_n_f32(v[j], inverse)), q = vcvtnq_s32_f32(vmulq_n_f32(v[j + 1], inverse));
    sum = vaddq_s32(sum, vaddq_s32(p, q));
    vst1_s8(out->q[j / 2] + 8 * row, vqmovn_s16(vcombine_s16(vqmovn_s32(p), vqmovn_s32(q))));
  }
  const float sx = dx * static_cast<float>(vaddvq_s32(sum));
  out->dx[row] = out->dx[row + 2] = dx;
  out->sx[row] = out->sx[row + 2] = sx;
}

SX_KERNEL void quantise_row(const float* x, int in, int row, ActBlock* out) {
  int k = 0;
  for (; k < in / 32; ++k) quantise_32(x + 32 * k, row, out + k);
  if (in % 32) {
    float tail[32] = {};
    memcpy(tail, x + 32 * k, static_cast<size_t>(in % 32) * 4);
    quantise_32(tail, row, out + k);
  }
}

size_t block_act_bytes(int in) { return static_cast<size_t>((in + 31) / 32) * sizeof(ActBlock); }  // of two rows

SX_KERNEL void quantise_pairs(const float* x, int in, int rows, int first, int last, ActBlock* act) {
  const size_t blocks = static_cast<size_t>((in + 31) / 32), width = static_cast<size_t>(in);
  for (int t = first; t < last; ++t) {
    ActBlock* out = act + static_cast<size_t>(t) * blocks;
    const float* row = x + static_cast<size_t>(2 * t) * width;
    quantise_row(row, in, 0, out);
    if (2 * t + 1 < rows) quantise_row(row + width, in, 1, out);
    else if (rows > 1)  // the missing second row; a lone row's kernel does not look at it
      for (size_t k = 0; k < blocks; ++k) {
        for (int j = 0; j < 4; ++j) vst1_s8(out[k].q[j] + 8, vdup_n_s8(0));
        out[k].dx[1] = out[k].dx[3] = out[k].sx[1] = out[k].sx[3] = 0;
      }
  }
}

// ---- pieces of kernels -----------------------------------------------------------------------------------------------
#define SX_ALWAYS inline __attribute__((always_inline))

SX_ALWAYS int8x16_t load_q(const uint8_t* p) { return vreinterpretq_s8_u8(vld1q_u8(p)); }
SX_ALWAYS int8x16_t low_16(uint8x16_t x) { return vreinterpretq_s8_u8(vshlq_n_u8(x, 4)); }
SX_ALWAYS int8x16_t high_16(uint8x16_t x) { return vreinterpretq_s8_u8(vandq_u8(x, vdupq_n_u8(0xf0))); }

template <class F>
SX_ALWAYS void load_scales(const uint8_t* p, float32x4_t* f) {  // of the 8 outputs
  if constexpr (F::kWide) {
    f[0] = vreinterpretq_f32_u8(vld1q_u8(p)), f[1] = vreinterpretq_f32_u8(vld1q_u8(p + 16));
  } else {
    const float16x8_t h = vreinterpretq_f16_u8(vld1q_u8(p));
    f[0] = vcvt_f32_f16(vget_low_f16(h)), f[1] = vcvt_high_f32_f16(h);
  }
}

SX_ALWAYS float32x4_t twice(float32x4_t x, int half) {  // [a b c d] -> [a a b b] or [c c d d]
  return half ? vzip2q_f32(x, x) : vzip1q_f32(x, x);
}

struct Output {  // where and how a group's results go
  float* out;
  size_t stride;
  const float* bias;
  int valid;  // outputs of the group that exist
  bool accumulate;
  float unit;  // of the layout
};

// The same for a group that is partly beyond the matrix.
SX_KERNEL void finish_part(const Output& o, float* y, float32x4_t a, float32x4_t b) {
  float t[8];
  vst1q_f32(t, a), vst1q_f32(t + 4, b);
  for (int i = 0; i < o.valid; ++i) {
    const float value = o.bias ? t[i] + o.bias[i] : t[i];
    y[i] = o.accumulate ? y[i] + value : value;
  }
}

// One row's 8 results: out = acc * unit + bias, then old + that.
SX_ALWAYS void finish(const Output& o, size_t row, float32x4_t a, float32x4_t b) {
  float* y = o.out + row * o.stride;
  a = vmulq_n_f32(a, o.unit), b = vmulq_n_f32(b, o.unit);
  if (o.valid != 8) return finish_part(o, y, a, b);
  if (o.bias) a = vaddq_f32(a, vld1q_f32(o.bias)), b = vaddq_f32(b, vld1q_f32(o.bias + 4));
  if (o.accumulate) a = vaddq_f32(vld1q_f32(y), a), b = vaddq_f32(vld1q_f32(y + 4), b);
  vst1q_f32(y, a), vst1q_f32(y + 4, b);
}

#include "backend/cpu/linear/linear_i8mm_few.inl"

// ---- many rows -------------------------------------------------------------------------------------------------------
// A group-block unpacked into L1: operands as they are multiplied, scales as [o0 o0 o1 o1].
template <class F>
struct alignas(64) Panel {
  int8_t q[4][4][16];
  float d[F::kHalves][4][4];
  float m[F::kOffset ? F::kHalves : 1][4][4];
};

template <class F>
SX_KERNEL void unpack(Panel<F>* p, const uint8_t* g, int blocks) {
  for (int k = 0; k < blocks; ++k, g += F::kBytes, ++p) {
    for (int h = 0; h < F::kHalves; ++h) {
      float32x4_t d[2], m[2];
      load_scales<F>(g + h * F::kScaleBytes, d);
      if constexpr (F::kOffset) load_scales<F>(g + F::kOffsetsAt + h * F::kScaleBytes, m);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        vst1q_f32(p->d[h][i], twice(d[i / 2], i % 2));
        if constexpr (F::kOffset) vst1q_f32(p->m[h][i], twice(m[i / 2], i % 2));
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) vst1q_s8(p->q[i / 4][i % 4], load_q(g + F::kQuantsAt + 16 * i));
  }
}

// The integer sums of all four pairs of outputs with A pairs of rows over half h of the block (all of it when the type
// has one scale per 32). Operand after operand, so that neighbouring instructions belong to different sums and each
// operand is loaded right before its use.
template <class F, int A, bool kDirect>
SX_ALWAYS void dots_pairs(const uint8_t* q, const Panel<F>* p, const ActBlock* x, size_t stride, int h,
                          int32x4_t (*s)[A]) {
  constexpr int kOperands = 4 / F::kHalves;
#pragma GCC unroll 4
  for (int j = kOperands * h; j < kOperands * (h + 1); ++j) {
    int8x16_t a[A];
#pragma GCC unroll 4
    for (int r = 0; r < A; ++r) a[r] = vld1q_s8(x[static_cast<size_t>(r) * stride].q[j]);
    const bool first = j == kOperands * h;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const int8x16_t b = kDirect ? load_q(q + 64 * i + 16 * j) : vld1q_s8(p->q[i][j]);
#pragma GCC unroll 4
      for (int r = 0; r < A; ++r) s[i][r] = vmmlaq_s32(first ? vdupq_n_s32(0) : s[i][r], b, a[r]);
    }
  }
}

// 8 outputs x A pairs of rows. kDirect: weights unpacked on the fly; else from the panel.
template <class F, int A, bool kDirect>
SX_KERNEL void group_pairs(const Output& output, int rows, const uint8_t* g, const Panel<F>* p, const ActBlock* x,
                           int blocks) {
  const size_t stride = static_cast<size_t>(blocks);
  float32x4_t acc[4][A];
#pragma GCC unroll 16
  for (int i = 0; i < 4 * A; ++i) acc[i / A][i % A] = vdupq_n_f32(0);
#pragma GCC unroll 1
  for (int k = 0; k < blocks; ++k, g += F::kBytes, ++p, ++x)
#pragma GCC unroll 2
    for (int h = 0; h < F::kHalves; ++h) {
      int32x4_t s[4][A];
      dots_pairs<F, A, kDirect>(g + F::kQuantsAt, p, x, stride, h, s);
      float32x4_t d[2], m[2], dx[A], sx[A];
      if constexpr (kDirect) {
        load_scales<F>(g + h * F::kScaleBytes, d);
        if constexpr (F::kOffset) load_scales<F>(g + F::kOffsetsAt + h * F::kScaleBytes, m);
      }
#pragma GCC unroll 4
      for (int r = 0; r < A; ++r) {
        const ActBlock& t = x[static_cast<size_t>(r) * stride];
        dx[r] = vld1q_f32(t.dx);
        if constexpr (F::kOffset && F::kHalves == 2) {  // sums of 16 are needed by Q2_K only: counted here
          const int32x4_t half = vmmlaq_s32(vdupq_n_s32(0), vdupq_n_s8(1), vld1q_s8(t.q[2 * h]));
          sx[r] = vmulq_f32(vcvtq_f32_s32(vmmlaq_s32(half, vdupq_n_s8(1), vld1q_s8(t.q[2 * h + 1]))), dx[r]);
        } else if constexpr (F::kOffset) {
          sx[r] = vld1q_f32(t.sx);
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const float32x4_t dd = kDirect ? twice(d[i / 2], i % 2) : vld1q_f32(p->d[h][i]);
        float32x4_t mm = vdupq_n_f32(0);
        if constexpr (F::kOffset) mm = kDirect ? twice(m[i / 2], i % 2) : vld1q_f32(p->m[h][i]);
#pragma GCC unroll 4
        for (int r = 0; r < A; ++r) {
          acc[i][r] = vfmaq_f32(acc[i][r], vcvtq_f32_s32(s[i][r]), vmulq_f32(dd, dx[r]));
          if constexpr (F::kOffset) acc[i][r] = vfmaq_f32(acc[i][r], mm, sx[r]);
        }
      }
    }
#pragma GCC unroll 4
  for (int r = 0; r < A; ++r) {
    finish(output, static_cast<size_t>(2 * r), vuzp1q_f32(acc[0][r], acc[1][r]), vuzp1q_f32(acc[2][r], acc[3][r]));
    if (2 * r + 1 < rows)
      finish(output, static_cast<size_t>(2 * r + 1), vuzp2q_f32(acc[0][r], acc[1][r]),
             vuzp2q_f32(acc[2][r], acc[3][r]));
  }
}

// ---- a job -----------------------------------------------------------------------------------------------------------
constexpr int kDirectRows = 8;   // up to so many rows a panel does not pay
constexpr int kPanelRows = 128;  // rows that use a panel before the next group; their activations stay in L2

Output output_of(const LinearJob& job, int group, int row) {
  const int left = job.outputs - 8 * group;
  return {job.out + static_cast<size_t>(row) * static_cast<size_t>(job.out_stride) + 8 * group,
          static_cast<size_t>(job.out_stride),
          job.bias ? job.bias + 8 * group : nullptr,
          left < 8 ? left : 8,
          job.accumulate,
          job.layout->unit};
}

#include "backend/cpu/linear/linear_i8mm_super.inl"

// A call's activations: units of 64 for all tiles, then blocks of 32 likewise, as far as they are needed.
size_t act_bytes(int in) { return super_act_bytes(in) + kTilePairs * block_act_bytes(in); }  // of kTileRows rows
ActBlock* act_blocks_at(void* act, int in, int rows) {
  const size_t tiles = static_cast<size_t>((rows + kTileRows - 1) / kTileRows);
  return reinterpret_cast<ActBlock*>(static_cast<std::byte*>(act) + tiles * super_act_bytes(in));
}
const ActBlock* act_blocks(const LinearJob& job) {
  return act_blocks_at(const_cast<void*>(job.act), job.layout->in, job.rows);
}

void quantise(const float* x, int in, int rows, int first, int last, int act_blocks, void* act) {
  const int to = last * kTileRows < rows ? last * kTileRows : rows;
  if (act_blocks & kSuper) super_quantise(x, in, rows, first * kTileRows, to, act);
  if (act_blocks & kLinearBlock)
    quantise_pairs(x, in, rows, first * kTilePairs, (to + 1) / 2, act_blocks_at(act, in, rows));
}

// Rows [from, to) of one group.
template <class F, bool kDirect>
void run_rows(const LinearJob& job, int group, int from, int to, const uint8_t* g, const Panel<F>* panel) {
  const int blocks = job.layout->blocks;
  const ActBlock* x = act_blocks(job) + static_cast<size_t>(from / 2) * static_cast<size_t>(blocks);
  for (int r = from; r < to; r += 4, x += 2 * blocks) {
    if (to - r > 2) group_pairs<F, 2, kDirect>(output_of(job, group, r), to - r, g, panel, x, blocks);
    else group_pairs<F, 1, kDirect>(output_of(job, group, r), to - r, g, panel, x, blocks);
  }
}

template <class F>
void run_format(const LinearJob& job) {
  const int blocks = job.layout->blocks, rows = job.rows;
  const size_t bytes = job.layout->group_bytes;
  const uint8_t* weights = reinterpret_cast<const uint8_t*>(job.weights);
  if (rows == 1) {
    const ActBlock* x = act_blocks(job);
    const int part = (job.last - job.first) / 2;
    for (int g = job.first; g < job.first + part; ++g) {
      const Output outputs[2] = {output_of(job, g, 0), output_of(job, g + part, 0)};
      group_1<F, 2>(outputs, weights + static_cast<size_t>(g) * bytes, static_cast<size_t>(part) * bytes, x, blocks);
    }
    for (int g = job.first + 2 * part; g < job.last; ++g) {
      const Output output = output_of(job, g, 0);
      group_1<F, 1>(&output, weights + static_cast<size_t>(g) * bytes, 0, x, blocks);
    }
    return;
  }
  if constexpr (F::kHalves == 1)
    if (rows == 2) {
      const ActBlock* x = act_blocks(job);
      const int part = (job.last - job.first) / 2;
      for (int g = job.first; g < job.first + part; ++g) {
        const Output outputs[2] = {output_of(job, g, 0), output_of(job, g + part, 0)};
        group_pair_2<F>(outputs, rows, weights + static_cast<size_t>(g) * bytes, static_cast<size_t>(part) * bytes, x,
                        blocks);
      }
      for (int g = job.first + 2 * part; g < job.last; ++g)
        run_rows<F, true>(job, g, 0, rows, weights + static_cast<size_t>(g) * bytes, nullptr);
      return;
    }
  if (rows <= kDirectRows) {
    for (int g = job.first; g < job.last; ++g)
      run_rows<F, true>(job, g, 0, rows, weights + static_cast<size_t>(g) * bytes, nullptr);
    return;
  }
  Panel<F>* panel = reinterpret_cast<Panel<F>*>(job.panel);
  for (int from = 0; from < rows; from += kPanelRows)
    for (int g = job.first; g < job.last; ++g) {
      unpack<F>(panel, weights + static_cast<size_t>(g) * bytes, blocks);
      run_rows<F, false>(job, g, from, rows < from + kPanelRows ? rows : from + kPanelRows, nullptr, panel);
    }
}

size_t panel_bytes(int in) {
  const size_t own = static_cast<size_t>((in + 31) / 32) * sizeof(Panel<Format<Quant::kByte, true, true, 16>>);
  const size_t more = own > super_panel_bytes() ? own : super_panel_bytes(), floats = float_panel_bytes(in);
  return more > floats ? more : floats;
}

LinearLayout i8mm_layout(const LinearShape& shape) {
  return super_format(shape) >= 0 ? super_layout(shape) : layout(shape);
}

void i8mm_pack(const LinearLayout& l, const LinearSource& source, std::byte* group) {
  if (l.format >= kSuperFormats) with_super(l.format, [&](auto f) { super_pack<decltype(f)>(l, source, group); });
  else pack(l, source, group);
}

void run(const LinearJob& job) {
  if (!job.layout->quantised) float_run(job, kFloatFormats);
  else if (job.layout->format >= kSuperFormats)
    with_super(job.layout->format, [&](auto f) { super_run<decltype(f)>(job); });
  else with_format(job.layout->format, [&](auto f) { run_format<decltype(f)>(job); });
}

constexpr LinearKernels kTable = {"neon-i8mm", i8mm_layout, i8mm_pack,   kTileRows,
                                  act_bytes,   quantise,    panel_bytes, run};

}  // namespace
}  // namespace sx::cpu::neon_i8mm

namespace sx::cpu {
const LinearKernels* linear_kernels_neon_i8mm() { return &neon_i8mm::kTable; }
}  // namespace sx::cpu
#else
namespace sx::cpu {
const LinearKernels* linear_kernels_neon_i8mm() { return nullptr; }
}  // namespace sx::cpu
#endif
