// Quantised linear layers in the "lanes are outputs" layout, for sets with a 4-element int8 dot product (or none):
// included by a kernel file that first defines, in its namespace, kGroup (outputs per group), kAlwaysWide (see
// linear_formats.inl) and
//   IntVec, Bytes (kLanes int32; kLanes x 4 int8), ActRegs (32 quantised activations of a row)
//   load_bytes(p), int_zero(), to_float(IntVec), load_act(const int8_t*), dot<j>(IntVec acc, Bytes w, const ActRegs& x)
//   (adds, per output, the dot product of w's 4 inner values with x[4j..4j+3]), and for nibbles
//   low_nibbles, high_nibbles (0..15) and low_nibbles_16, high_nibbles_16 (16 times the two's complement nibble).
//
// A group-block is 32 inner values of kGroup outputs: scales [32 / sub][group], offsets likewise (if any), quants
// [8 quads of inner values][group][4]; as nibbles [4][group][4], quad j low and quad j + 4 high.
#include "backend/cpu/linear/linear_formats.inl"

namespace sx::cpu::SX_ISA_NAMESPACE {
namespace {

constexpr int kVecs = kGroup / kLanes;
static_assert(kVecs * kLanes == kGroup);

template <class F>
void pack_quants(uint8_t* quants, const int8_t* source, size_t padded) {
  for (int o = 0; o < kGroup; ++o) {
    const int8_t* q = source + static_cast<size_t>(o) * padded;
    for (int i = 0; i < 32; ++i) {
      const int j = i / 4;
      if (F::kQuant == Quant::kByte) {
        quants[(j * kGroup + o) * 4 + i % 4] = static_cast<uint8_t>(q[i]);
        continue;
      }
      // A padded output's or inner value's scale is 0, so its stored -8 is as neutral as 0.
      const int nibble = (F::kQuant == Quant::kSignedNibble ? q[i] - 8 : q[i]) & 15;
      uint8_t& byte = quants[(j % 4 * kGroup + o) * 4 + i % 4];
      byte = j >= 4 ? static_cast<uint8_t>(byte | nibble << 4) : static_cast<uint8_t>(nibble);
    }
  }
}

// ---- activations -----------------------------------------------------------------------------------------------------
struct alignas(16) ActBlock {
  int8_t q[32];
  float dx;
  float sx[3];  // dx * sum of q[0..31], q[0..15], q[16..31]
};

// A row's 32 values. A block with an infinity or NaN gets q = 0 and a scale that makes its row's results NaN.
inline void lanes_quantise_32(const float* x, ActBlock* out) {
  Vec high = zero(), bad = zero();
  for (int j = 0; j < 32; j += kLanes) {
    const Vec v = load(x + j);
    high = max(high, abs(v));
    bad = add(bad, mul(v, zero()));
  }
  const float top = reduce_max(high), poison = reduce_add(bad);
  out->dx = top / 127 + poison;
  const bool good = poison == 0 && top >= 0x1p-100f;
  const Vec inverse = set1(good ? 127 / top : 0.0f);
  float rounded[32];
  for (int j = 0; j < 32; j += kLanes) store(rounded + j, round(mul(good ? load(x + j) : zero(), inverse)));
  int sum[2] = {0, 0};
  for (int i = 0; i < 32; ++i) {
    const int q = static_cast<int>(rounded[i]);
    out->q[i] = static_cast<int8_t>(q);
    sum[i / 16] += q;
  }
  out->sx[0] = out->dx * static_cast<float>(sum[0] + sum[1]);
  out->sx[1] = out->dx * static_cast<float>(sum[0]);
  out->sx[2] = out->dx * static_cast<float>(sum[1]);
}

size_t lanes_act_bytes(int in) { return static_cast<size_t>((in + 31) / 32) * sizeof(ActBlock); }

void lanes_quantise(const float* x, int in, int, int first, int last, int, void* act) {
  const size_t blocks = static_cast<size_t>((in + 31) / 32);
  for (int t = first; t < last; ++t) {
    ActBlock* out = static_cast<ActBlock*>(act) + static_cast<size_t>(t) * blocks;
    const float* row = x + static_cast<size_t>(t) * static_cast<size_t>(in);
    int k = 0;
    for (; k < in / 32; ++k) lanes_quantise_32(row + 32 * k, out + k);
    if (in % 32) {
      float tail[32] = {};
      memcpy(tail, row + 32 * k, static_cast<size_t>(in % 32) * 4);
      lanes_quantise_32(tail, out + k);
    }
  }
}

// ---- dot products --------------------------------------------------------------------------------------------------------
template <class F>
SX_INLINE Vec lanes_scale(const uint8_t* p, int v) {
  if constexpr (F::kWide) return load(reinterpret_cast<const float*>(p) + v * kLanes);
  else return load_f16(reinterpret_cast<const uint16_t*>(p) + v * kLanes);
}

// The integer sums of one vector of outputs against R rows, one per half-block that has its own scale.
template <class F, int R>
SX_INLINE void lanes_dots(const uint8_t* quants, int v, const ActRegs* x, IntVec (*s)[R]) {
  constexpr int kStep = kGroup * 4;
  for (int h = 0; h < F::kHalves; ++h)
    for (int r = 0; r < R; ++r) s[h][r] = int_zero();
  const uint8_t* p = quants + v * kLanes * 4;
  auto quad = [&]<int j>() __attribute__((always_inline)) {
    constexpr int kLow = 0, kHigh = F::kHalves - 1;
    if constexpr (F::kQuant == Quant::kByte) {
      const Bytes low = load_bytes(p + j * kStep), high = load_bytes(p + (j + 4) * kStep);
      for (int r = 0; r < R; ++r)
        s[kLow][r] = dot<j>(s[kLow][r], low, x[r]), s[kHigh][r] = dot<j + 4>(s[kHigh][r], high, x[r]);
    } else {
      const Bytes both = load_bytes(p + j * kStep);
      const Bytes low = F::kQuant == Quant::kNibble ? low_nibbles(both) : low_nibbles_16(both);
      const Bytes high = F::kQuant == Quant::kNibble ? high_nibbles(both) : high_nibbles_16(both);
      for (int r = 0; r < R; ++r)
        s[kLow][r] = dot<j>(s[kLow][r], low, x[r]), s[kHigh][r] = dot<j + 4>(s[kHigh][r], high, x[r]);
    }
  };
  quad.template operator()<0>(), quad.template operator()<1>(), quad.template operator()<2>(),
      quad.template operator()<3>();
}

// One row's results: out = acc + bias, then old + that.
SX_INLINE void lanes_finish(const LinearJob& job, int group, int row, const Vec* acc) {
  float t[kGroup];
  for (int v = 0; v < kVecs; ++v) store(t + v * kLanes, acc[v]);
  float* y = job.out + static_cast<size_t>(row) * static_cast<size_t>(job.out_stride) + group * kGroup;
  const int left = job.outputs - group * kGroup, valid = left < kGroup ? left : kGroup;
  const float* bias = job.bias ? job.bias + group * kGroup : nullptr;
  for (int i = 0; i < valid; ++i) {
    const float value = bias ? t[i] + bias[i] : t[i];
    y[i] = job.accumulate ? y[i] + value : value;
  }
}

// G groups, `step` apart, x R rows.
template <class F, int G, int R>
__attribute__((noinline)) void lanes_tile(const LinearJob& job, int group, int step, int row) {
  const int blocks = job.layout->blocks;
  const uint8_t* w =
      reinterpret_cast<const uint8_t*>(job.weights) + static_cast<size_t>(group) * job.layout->group_bytes;
  const size_t apart = static_cast<size_t>(step) * job.layout->group_bytes;
  const ActBlock* x = static_cast<const ActBlock*>(job.act) + static_cast<size_t>(row) * static_cast<size_t>(blocks);
  Vec acc[G][R][kVecs];
  for (int g = 0; g < G; ++g)
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVecs; ++v) acc[g][r][v] = zero();
  for (int k = 0; k < blocks; ++k, w += F::kBytes, ++x) {
    ActRegs a[R];
    Vec dx[R];
    for (int r = 0; r < R; ++r) {
      const ActBlock& t = x[static_cast<size_t>(r) * static_cast<size_t>(blocks)];
      a[r] = load_act(t.q);
      dx[r] = set1(F::kQuant == Quant::kSignedNibble ? t.dx * 0.0625f : t.dx);
    }
    for (int g = 0; g < G; ++g) {
      const uint8_t* wg = w + static_cast<size_t>(g) * apart;
      for (int v = 0; v < kVecs; ++v) {
        IntVec s[F::kHalves][R];
        lanes_dots<F, R>(wg + F::kQuantsAt, v, a, s);
        for (int h = 0; h < F::kHalves; ++h) {
          const Vec d = lanes_scale<F>(wg + h * F::kScaleBytes, v);
          const Vec m = F::kOffset ? lanes_scale<F>(wg + F::kOffsetsAt + h * F::kScaleBytes, v) : zero();
          for (int r = 0; r < R; ++r) {
            acc[g][r][v] = fma(to_float(s[h][r]), mul(d, dx[r]), acc[g][r][v]);
            const float sx = x[static_cast<size_t>(r) * static_cast<size_t>(blocks)].sx[F::kHalves == 1 ? 0 : 1 + h];
            if constexpr (F::kOffset) acc[g][r][v] = fma(m, set1(sx), acc[g][r][v]);
          }
        }
      }
    }
  }
  for (int g = 0; g < G; ++g)
    for (int r = 0; r < R; ++r) lanes_finish(job, group + g * step, row + r, acc[g][r]);
}

void lanes_run(const LinearJob& job) {
  if (!job.layout->quantised) return float_run(job, kFloatFormats);
  with_format(job.layout->format, [&](auto f) {
    using F = decltype(f);
    if (job.rows == 1) {
      const int half = (job.last - job.first) / 2;  // two streams of memory
      for (int g = job.first; g < job.first + half; ++g) lanes_tile<F, 2, 1>(job, g, half, 0);
      if ((job.last - job.first) % 2) lanes_tile<F, 1, 1>(job, job.last - 1, 0, 0);
      return;
    }
    for (int g = job.first; g < job.last; ++g) {
      int r = 0;
      for (; r + 4 <= job.rows; r += 4) lanes_tile<F, 1, 4>(job, g, 0, r);
      for (; r + 2 <= job.rows; r += 2) lanes_tile<F, 1, 2>(job, g, 0, r);
      if (r < job.rows) lanes_tile<F, 1, 1>(job, g, 0, r);
    }
  });
}

size_t lanes_panel_bytes(int in) { return float_panel_bytes(in); }

}  // namespace
}  // namespace sx::cpu::SX_ISA_NAMESPACE
