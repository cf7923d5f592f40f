// The row kernels on simd.h. At 4 lanes a row of logits costs about one instruction per vector for the maxima and 18
// for the powers: 3 and 33 microseconds for 49,152 logits on a Neoverse V1, which does two to three of them per cycle.
//
// Include from one translation unit per instruction set with SX_ISA_NAMESPACE defined and that set's flags; nothing
// here has external linkage except kRowKernels.
#include "backend/cpu/simd.h"
#include "backend/cpu/sampling/top_k_kernels.h"

namespace sx::cpu::SX_ISA_NAMESPACE {
namespace {

constexpr int kVecs = kGroups / kLanes;
static_assert(kGroups % kLanes == 0);

// Calls step(pointer to 16 values) for a slab. The last values are filled up with -infinity, which changes neither a
// maximum nor a sum.
template <class Step>
SX_INLINE void each_sixteen(const float* x, int count, Step step) {
  int i = 0;
  for (; i + kGroups <= count; i += kGroups) step(x + i);
  if (i == count) return;
  float rest[kGroups];
  for (int j = 0; j < kGroups; ++j) rest[j] = i + j < count ? x[i + j] : -__builtin_inff();
  step(rest);
}

void find_maxima(const float* x, int count, float* maxima) {
  Vec best[kVecs];
  for (int v = 0; v < kVecs; ++v) best[v] = set1(-__builtin_inff());
  each_sixteen(x, count, [&](const float* p) {
    for (int v = 0; v < kVecs; ++v) best[v] = max_number(load(p + v * kLanes), best[v]);
  });
  for (int v = 0; v < kVecs; ++v) store(maxima + v * kLanes, best[v]);
}

// e^x for x <= 0 (-infinity and NaN: the floor, e^-87), relative error 1e-6.
SX_INLINE Vec power(Vec x) {
  const Vec log2e = set1(1.44269504f), shift = set1(12582912.0f);  // 1.5 * 2^23: sums with it are whole
  const Vec d = max_number(x, set1(-87.0f));
  const Vec w = fma(d, log2e, shift);
  const Vec f = fma(d, log2e, sub(shift, w));  // 2^f on [-0.5, 0.5] by a minimax polynomial that is exact at 0
  const Vec ff = mul(f, f);
  const Vec low = fma(f, set1(0.69314283058f), set1(1.0f));
  const Vec middle = fma(f, set1(0.0555740051599f), set1(0.240223506521f));
  const Vec high = fma(f, set1(0.00111254944797f), set1(0.00966628245593f));
  return add_exponent(fma(ff, fma(ff, high, middle), low), w);
}

float sum_powers(const float* x, int count, float top) {
  const Vec most = set1(top);
  Vec sum[kVecs];
  for (int v = 0; v < kVecs; ++v) sum[v] = zero();
  each_sixteen(x, count, [&](const float* p) {
    for (int v = 0; v < kVecs; ++v) sum[v] = add(sum[v], power(sub(load(p + v * kLanes), most)));
  });
  for (int half = kVecs / 2; half > 0; half /= 2)
    for (int v = 0; v < half; ++v) sum[v] = add(sum[v], sum[v + half]);
  return reduce_add(sum[0]);
}

}  // namespace

extern const RowKernels kRowKernels;
const RowKernels kRowKernels = {find_maxima, sum_powers};

}  // namespace sx::cpu::SX_ISA_NAMESPACE
