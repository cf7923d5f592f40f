#include "tensor/quantise_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "tensor/blocks.h"
#include "tensor/half.h"

namespace sx {
namespace {

constexpr size_t kRun = 32;

// What the nearest values leave: the squared error, and the scale that least squares give for these codes.
struct Fit {
  double error = 0, refit = 0;
};

Fit fit(const int8_t* table, const float* x, double d) {
  Fit result;
  double xt = 0, tt = 0;
  const double inverse = d == 0 ? 0 : 1 / d;
  for (size_t i = 0; i < kRun; ++i) {
    const double value = static_cast<double>(x[i]), t = table[nearest_code(table, value * inverse)];
    result.error += (value - d * t) * (value - d * t);
    xt += value * t, tt += t * t;
  }
  result.refit = tt > 0 ? xt / tt : 0;
  return result;
}

}  // namespace

int nearest_code(const int8_t* table, double x) {
  int best = 0;
  for (int i = 1; i < 16; ++i)
    if (std::fabs(x - table[i]) < std::fabs(x - table[best])) best = i;
  return best;
}

void store_codes(const int8_t* table, const float* x, double inverse, uint8_t* q) {
  const auto code = [&](size_t i) { return nearest_code(table, static_cast<double>(x[i]) * inverse); };
  for (size_t i = 0; i < 16; ++i) q[i] = static_cast<uint8_t>(code(i) | code(i + 16) << 4);
}

void search_mxfp4(const float* x, float largest, void* out) {
  const int plain = std::ilogb(largest) + 125;  // the largest value gets E2M1's largest exponent
  int best = 0;
  double error = std::numeric_limits<double>::infinity();
  for (const int e : {plain, plain + 1, plain - 1}) {
    const int held = std::clamp(e, 0, 252);  // beyond it 6 times the scale is no float
    const double found = fit(kMXFP4Table, x, std::ldexp(1.0, held - 128)).error;
    if (found < error) error = found, best = held;
  }
  BlockMXFP4 block{static_cast<uint8_t>(best), {}};
  store_codes(kMXFP4Table, x, std::ldexp(1.0, 128 - best), block.q);
  std::memcpy(out, &block, sizeof(block));
}

void search_iq4_nl(const float* x, float largest, void* out) {
  float best = 0;
  double error = std::numeric_limits<double>::infinity();
  // The table reaches from -127 to 113, so the sign of the scale matters; smaller divisors leave the end unused.
  for (const double sign : {-1.0, 1.0}) {
    for (int i = 0; i < 12; ++i) {
      double d = sign * static_cast<double>(largest) / (133 - 4 * i);
      for (int round = 0; round < 2; ++round) {
        const float held = f16_to_float(float_to_f16(static_cast<float>(d)));
        if (!std::isfinite(held)) break;
        const Fit found = fit(kIQ4Table, x, static_cast<double>(held));
        if (found.error < error) error = found.error, best = held;
        d = found.refit;
      }
    }
  }
  BlockIQ4_NL block{float_to_f16(best), {}};
  store_codes(kIQ4Table, x, best == 0 ? 0 : 1 / static_cast<double>(best), block.q);
  std::memcpy(out, &block, sizeof(block));
}

}  // namespace sx
