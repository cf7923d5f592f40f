// Scales and minima of affine runs: candidates from trimmed ranges, refitted by least squares. For Q4_K the eight runs
// then share two 16-bit numbers: multiples are searched around the rounded ones, and the shared numbers are refitted.
#include "tensor/quantise_k.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "tensor/blocks.h"
#include "tensor/half.h"

namespace sx {
namespace {

constexpr size_t kRun = 32, kRuns = 8;
constexpr int kMost = 63;  // largest 6-bit multiple

float round_to_f16(float x) { return f16_to_float(float_to_f16(x)); }

// Not below x >= 0: tiny scales must not round to something that no multiple makes large enough.
float round_up_to_f16(float x) {
  const uint16_t bits = float_to_f16(x);
  return f16_to_float(f16_to_float(bits) < x ? static_cast<uint16_t>(bits + 1) : bits);
}

// What codes 0..15 for x = scale * code + offset leave: the squared error and the sums that refit both.
struct Fit {
  double error = 0, q = 0, xq = 0, qq = 0;
};

float code_of(float x, float offset, float inverse) {
  return nearest_small(std::min(std::max((x - offset) * inverse, 0.0f), 15.0f));
}

float error_of(const float* x, float scale, float offset) {
  const float inverse = inverse_or_zero(scale);
  float error[kLanes] = {};
  for (size_t i = 0; i < kRun; i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) {
      const float miss = x[i + k] - (scale * code_of(x[i + k], offset, inverse) + offset);
      error[k] += miss * miss;
    }
  }
  return static_cast<float>(sum_lanes(error));
}

Fit fit_affine(const float* x, float scale, float offset) {
  const float inverse = inverse_or_zero(scale);
  float error[kLanes] = {}, sq[kLanes] = {}, xq[kLanes] = {}, qq[kLanes] = {};
  for (size_t i = 0; i < kRun; i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) {
      const float value = x[i + k], q = code_of(value, offset, inverse), miss = value - (scale * q + offset);
      error[k] += miss * miss;
      sq[k] += q;
      xq[k] += value * q;
      qq[k] += q * q;
    }
  }
  return {sum_lanes(error), sum_lanes(sq), sum_lanes(xq), sum_lanes(qq)};
}

// The scale and offset of least squared error for the codes that were measured; `sum`: of x.
AffineRun refit_run(const Fit& fit, double sum, bool below_zero) {
  const double determinant = kRun * fit.qq - fit.q * fit.q;
  double scale = determinant > 0 ? (kRun * fit.xq - sum * fit.q) / determinant : 0;
  double offset = (sum - scale * fit.q) / kRun;
  if (below_zero && offset > 0) {
    offset = 0;
    scale = fit.qq > 0 ? fit.xq / fit.qq : 0;
  }
  if (below_zero && scale < 0) scale = 0, offset = std::min(0.0, sum / kRun);
  return {static_cast<float>(scale), static_cast<float>(offset)};
}

// One Q4_K block before packing.
struct Super {
  float d = 0, dmin = 0;                      // representable in 16 bits
  std::array<int, kRuns> scale{}, minimum{};  // 0..63
  float error = std::numeric_limits<float>::infinity();
};

int nearest_multiple(float value, float unit) {
  return std::clamp(static_cast<int>(std::nearbyint(value * inverse_or_zero(unit))), 0, kMost);
}

float run_error(const float* x, const Super& super, int scale, int minimum) {
  return error_of(x, super.d * static_cast<float>(scale), -(super.dmin * static_cast<float>(minimum)));
}

void run_codes(const float* x, const Super& super, size_t run, int8_t* code) {
  code_affine(x + run * kRun, super.d * static_cast<float>(super.scale[run]),
              -(super.dmin * static_cast<float>(super.minimum[run])), code);
}

// Multiples nearest to the runs' own scales, then the best neighbours of each.
void choose_multiples(const float* x, const std::array<AffineRun, kRuns>& runs, bool neighbours, Super& super) {
  super.error = 0;
  for (size_t s = 0; s < kRuns; ++s) {
    const int scale = nearest_multiple(runs[s].scale, super.d), minimum = nearest_multiple(-runs[s].offset, super.dmin);
    float best = run_error(x + s * kRun, super, scale, minimum);
    super.scale[s] = scale, super.minimum[s] = minimum;
    const int reach = neighbours ? 2 : 0;
    for (int a = std::max(0, scale - reach); a <= std::min(kMost, scale + reach); ++a) {
      for (int b = std::max(0, minimum - reach); b <= std::min(kMost, minimum + reach); ++b) {
        const float error = run_error(x + s * kRun, super, a, b);
        if (error < best) best = error, super.scale[s] = a, super.minimum[s] = b;
      }
    }
    super.error += best;
  }
}

// d and dmin of least squared error for the multiples and codes of `super`; false where they are not determined.
bool refit(const float* x, const Super& super, float& d, float& dmin) {
  double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;  // columns: a = scale * code, b = -minimum
  std::array<int8_t, kRun> code;
  for (size_t s = 0; s < kRuns; ++s) {
    run_codes(x, super, s, code.data());
    for (size_t i = 0; i < kRun; ++i) {
      const double a = super.scale[s] * code[i], b = -super.minimum[s], value = static_cast<double>(x[s * kRun + i]);
      aa += a * a, ab += a * b, bb += b * b, ax += a * value, bx += b * value;
    }
  }
  const double determinant = aa * bb - ab * ab;
  if (bb == 0 && aa > 0) {
    d = static_cast<float>(ax / aa), dmin = 0;
    return true;
  }
  if (!(determinant > 1e-12 * aa * bb)) return false;
  d = static_cast<float>((ax * bb - bx * ab) / determinant);
  dmin = static_cast<float>((bx * aa - ax * ab) / determinant);
  return d >= 0 && dmin >= 0;
}

void consider(const float* x, const std::array<AffineRun, kRuns>& runs, float d, float dmin, bool neighbours,
              Super& best) {
  for (int round = 0; round < (neighbours ? 3 : 1); ++round) {
    Super next;
    next.d = round_to_f16(d), next.dmin = round_to_f16(dmin);
    if (!std::isfinite(next.d) || !std::isfinite(next.dmin)) return;
    choose_multiples(x, runs, neighbours, next);
    if (next.error < best.error) best = next;
    if (!refit(x, next, d, dmin) || (round_to_f16(d) == next.d && round_to_f16(dmin) == next.dmin)) return;
  }
}

// The inverse of what blocks.cc unpacks: pairs 0..3 whole in bytes 0..7, pairs 4..7 split over all twelve.
void pack_multiples(const Super& super, uint8_t* packed) {
  std::memset(packed, 0, 12);
  for (size_t s = 0; s < kRuns; ++s) {
    const int scale = super.scale[s], minimum = super.minimum[s];
    if (s < 4) {
      packed[s] = static_cast<uint8_t>(packed[s] | scale);
      packed[s + 4] = static_cast<uint8_t>(packed[s + 4] | minimum);
    } else {
      packed[s + 4] = static_cast<uint8_t>((scale & 15) | (minimum & 15) << 4);
      packed[s - 4] = static_cast<uint8_t>(packed[s - 4] | scale >> 4 << 6);
      packed[s] = static_cast<uint8_t>(packed[s] | minimum >> 4 << 6);
    }
  }
}

// Scale and offset from the extreme values, as the plain quantiser of Q4_1 takes them.
AffineRun from_range(const float* x) {
  const auto [low, high] = std::minmax_element(x, x + kRun);
  const float from = std::min(*low, 0.0f);
  return {(*high - from) / 15, from};
}

}  // namespace

void code_affine(const float* x, float scale, float offset, int8_t* code) {
  const float inverse = inverse_or_zero(scale);
  for (size_t i = 0; i < kRun; ++i) code[i] = static_cast<int8_t>(code_of(x[i], offset, inverse));
}

AffineRun search_affine(const float* x, bool below_zero) {
  const auto [least, most] = std::minmax_element(x, x + kRun);
  const float low = below_zero ? std::min(*least, 0.0f) : *least, high = *most, range = high - low;
  AffineRun best{0, low};
  double best_error = std::numeric_limits<double>::infinity(), sum = 0;
  for (size_t i = 0; i < kRun; ++i) sum += static_cast<double>(x[i]);
  for (int trim = 0; trim < 36; ++trim) {  // up to a tenth of the range is cut from either end, or a little added
    const float cut_low = static_cast<float>(trim / 6) * 0.025f - 0.025f,
                cut_high = static_cast<float>(trim % 6) * 0.025f - 0.025f;
    AffineRun run{range * (1 - cut_low - cut_high) / 15, low + range * cut_low};
    if (below_zero) run.offset = std::min(run.offset, 0.0f);
    for (int round = 0; round < 3; ++round) {
      if (!below_zero) run = {round_to_f16(run.scale), round_to_f16(run.offset)};
      if (!std::isfinite(run.scale) || !std::isfinite(run.offset)) break;
      const Fit fit = fit_affine(x, run.scale, run.offset);
      if (fit.error < best_error) best_error = fit.error, best = run;
      else if (round > 0) break;
      run = refit_run(fit, sum, below_zero);
    }
  }
  return best;
}

void search_q4_k(const float* x, float, void* out) {
  std::array<AffineRun, kRuns> plain, searched;
  for (size_t s = 0; s < kRuns; ++s) {
    plain[s] = from_range(x + s * kRun);
    searched[s] = search_affine(x + s * kRun, true);
  }
  Super best;
  for (const auto* runs : {&plain, &searched}) {
    float scale = 0, minimum = 0;
    for (const AffineRun& run : *runs) scale = std::max(scale, run.scale), minimum = std::max(minimum, -run.offset);
    if (runs == &plain) {
      consider(x, *runs, scale / kMost, minimum / kMost, false, best);
      continue;
    }
    consider(x, *runs, round_up_to_f16(scale / kMost), round_up_to_f16(minimum / kMost), true, best);
    for (const float most : {63.0f, 61.0f, 59.0f}) consider(x, *runs, scale / most, minimum / most, true, best);
  }
  BlockQ4_K block{float_to_f16(best.d), float_to_f16(best.dmin), {}, {}};
  pack_multiples(best, block.scales);
  std::array<std::array<int8_t, kRun>, kRuns> code;
  for (size_t s = 0; s < kRuns; ++s) run_codes(x, best, s, code[s].data());
  for (size_t i = 0; i < 128; ++i) {  // a pair of runs takes 32 bytes: the first in the low nibbles
    const size_t pair = i / kRun;
    block.q[i] = static_cast<uint8_t>(code[2 * pair][i % kRun] | code[2 * pair + 1][i % kRun] << 4);
  }
  std::memcpy(out, &block, sizeof(block));
}

}  // namespace sx
