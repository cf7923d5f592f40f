#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/error.h"

namespace sx {
namespace {

// llama3: long wavelengths are divided by the factor, short ones kept, those between blended.
double llama3_scale(const RopeConfig& rope, double original, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < original / rope.high_frequency_factor) return frequency;
  if (wavelength > original / rope.low_frequency_factor) return frequency / rope.factor;
  const double smooth =
      (original / wavelength - rope.low_frequency_factor) / (rope.high_frequency_factor - rope.low_frequency_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

// yarn: the pair index at which a frequency makes `rotations` turns over the original context.
double yarn_pair(const RopeConfig& rope, double original, double rotations) {
  return rope.dims * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.base));
}

double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

void apply_yarn(const RopeConfig& rope, double original, RopeFrequencies& out) {
  double low = yarn_pair(rope, original, rope.beta_fast), high = yarn_pair(rope, original, rope.beta_slow);
  if (rope.yarn_truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, rope.dims - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < out.frequencies.size(); ++i) {
    const double ramp = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
    out.frequencies[i] = out.frequencies[i] / rope.factor * ramp + out.frequencies[i] * (1 - ramp);
  }
  if (rope.attention_factor > 0) out.factor = float(rope.attention_factor);
  else if (rope.mscale > 0 && rope.mscale_all_dim > 0)
    out.factor = float(yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim));
  else out.factor = float(yarn_mscale(rope.factor, 1));
}

// longrope: grows with the logarithm of the stretch, whichever divisors are in use.
float longrope_factor(const RopeConfig& rope, double context, double original) {
  if (rope.attention_factor > 0) return float(rope.attention_factor);
  const double stretch = rope.factor > 1 ? rope.factor : context / original;
  return stretch <= 1 ? 1.0f : float(std::sqrt(1 + std::log(stretch) / std::log(original)));
}

}  // namespace

RopeFrequencies rope_frequencies(const ModelConfig& config, const RopeConfig& rope, int context) {
  const double original = rope.original_context > 0 ? rope.original_context : config.context;
  double base = rope.base;
  if (rope.scaling == RopeScaling::kDynamic && context > original)
    base *= std::pow(rope.factor * context / original - (rope.factor - 1), double(rope.dims) / (rope.dims - 2));
  const bool stretched = rope.scaling == RopeScaling::kLongRope && context > original;
  const std::vector<float>& factors = stretched ? rope.long_factors : rope.factors;
  RopeFrequencies out;
  out.frequencies.resize(size_t(rope.dims / 2));
  for (size_t i = 0; i < out.frequencies.size(); ++i) {
    double& f = out.frequencies[i];
    f = std::pow(base, -2.0 * double(i) / rope.dims);
    if (rope.scaling == RopeScaling::kLinear) f /= rope.factor;
    if (rope.scaling == RopeScaling::kLlama3) f = llama3_scale(rope, original, f);
    if (!factors.empty()) f /= double(factors[i]);
  }
  if (rope.scaling == RopeScaling::kLongRope) out.factor = longrope_factor(rope, config.context, original);
  if (rope.scaling == RopeScaling::kYarn) apply_yarn(rope, original, out);
  return out;
}

int longest_text(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  if (rope.scaling == RopeScaling::kDynamic) return std::numeric_limits<int>::max();
  if (rope.scaling == RopeScaling::kNone) return config.context;
  const double stretched = rope.factor * (rope.original_context > 0 ? rope.original_context : config.context);
  return std::max(config.context, int(std::min(stretched, double(std::numeric_limits<int>::max()))));
}

}  // namespace sx
