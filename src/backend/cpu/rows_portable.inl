// The loops of rows_kernels.h. Included by one translation unit per instruction set with SX_ISA_NAMESPACE defined and
// that set's flags; nothing here has external linkage except kRowLoops.
#include <math.h>

#include "backend/cpu/fast_exp.h"
#include "backend/cpu/rows_kernels.h"

namespace sx::cpu::SX_ISA_NAMESPACE {
namespace {

#define SX_ROW_INLINE [[maybe_unused]] static inline __attribute__((always_inline))

constexpr int kPartial = 16;  // partial sums of a norm: part of the result's definition, never change with the machine

SX_ROW_INLINE float fold_lanes(float* lane) {
  for (int half = kPartial / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
  return lane[0];
}

SX_ROW_INLINE float sum_of_squares(const float* x, int width) {
  float lane[kPartial] = {};
  int i = 0;
  for (; i + kPartial <= width; i += kPartial)
    for (int j = 0; j < kPartial; ++j) lane[j] += x[i + j] * x[i + j];
  for (int j = 0; i < width; ++i, ++j) lane[j] += x[i] * x[i];
  return fold_lanes(lane);
}

SX_ROW_INLINE float sum_of(const float* x, int width) {
  float lane[kPartial] = {};
  int i = 0;
  for (; i + kPartial <= width; i += kPartial)
    for (int j = 0; j < kPartial; ++j) lane[j] += x[i + j];
  for (int j = 0; i < width; ++i, ++j) lane[j] += x[i];
  return fold_lanes(lane);
}

// The mean is taken off first, so that the squares are those of the deviations.
void centred_norm(const NormArgs& args, const float* x, float* out) {
  const float mean = sum_of(x, args.width) / float(args.width);
  for (int i = 0; i < args.width; ++i) out[i] = x[i] - mean;
  const float factor = 1.0f / sqrtf(sum_of_squares(out, args.width) / float(args.width) + args.eps);
  for (int i = 0; i < args.width; ++i) out[i] = out[i] * factor * args.weight[i];
  for (int i = 0; args.bias && i < args.width; ++i) out[i] += args.bias[i];
}

void norm(const NormArgs& args, const float* x, float* out) {
  if (args.centred) return centred_norm(args, x, out);
  const float factor = 1.0f / sqrtf(sum_of_squares(x, args.width) / float(args.width) + args.eps);
  for (int i = 0; i < args.width; ++i) out[i] = x[i] * factor * args.weight[i];
}

// tanh(x) within about 1e-7; branch-free as fast_exp is.
SX_ROW_INLINE float fast_tanh(float x) {
  const float e = fast_exp(x < 0 ? 2 * x : -2 * x), t = (1.0f - e) / (1.0f + e);
  return x < 0 ? -t : t;
}

template <Activation kind>
SX_ROW_INLINE float activated(float x) {
  if constexpr (kind == Activation::kSilu) return x / (1.0f + fast_exp(-x));
  if constexpr (kind == Activation::kGeluTanh)
    return 0.5f * x * (1.0f + fast_tanh(0.7978845608028654f * x * (1.0f + 0.044715f * x * x)));
  if constexpr (kind == Activation::kGelu) return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
  const float positive = x > 0 ? x : 0.0f;
  return positive * positive;
}

template <Activation kind>
void activate_row(const float* gate, const float* up, float* __restrict out, int width) {
  if (up)
    for (int i = 0; i < width; ++i) out[i] = activated<kind>(gate[i]) * up[i];
  else
    for (int i = 0; i < width; ++i) out[i] = activated<kind>(gate[i]);
}

void activate(Activation kind, const float* gate, const float* up, float* out, int width) {
  switch (kind) {
    case Activation::kSilu: return activate_row<Activation::kSilu>(gate, up, out, width);
    case Activation::kGeluTanh: return activate_row<Activation::kGeluTanh>(gate, up, out, width);
    case Activation::kGelu: return activate_row<Activation::kGelu>(gate, up, out, width);
    case Activation::kRelu2: return activate_row<Activation::kRelu2>(gate, up, out, width);
  }
}

void cap_row(float* x, int width, float cap) {
  const float inverse = 1.0f / cap;
  for (int i = 0; i < width; ++i) x[i] = cap * fast_tanh(x[i] * inverse);
}

#undef SX_ROW_INLINE
}  // namespace

extern const RowLoops kRowLoops;
const RowLoops kRowLoops = {norm, activate, cap_row};

}  // namespace sx::cpu::SX_ISA_NAMESPACE
