// Counts of sampled texts against the distribution they should have: Pearson's chi-square test and the total variation.
#pragma once
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "base/token.h"

namespace sx::testing {

// The probability that a chi-square statistic is at least that large: the regularised incomplete gamma function
// Q(freedom / 2, statistic / 2), from Q(1/2, h) = erfc(sqrt h) or Q(1, h) = e^-h upwards by
// Q(a + 1, h) = Q(a, h) + h^a e^-h / gamma(a + 1).
inline double chi_square_p(double statistic, int freedom) {
  if (!(statistic > 0)) return 1;
  const double h = statistic / 2;
  double a = freedom % 2 ? 0.5 : 1, q = freedom % 2 ? std::erfc(std::sqrt(h)) : std::exp(-h);
  for (; a < freedom / 2.0; ++a) q += std::exp(a * std::log(h) - h - std::lgamma(a + 1));
  return q;
}

using Distribution = std::map<std::vector<Token>, double>;  // texts of positive probability
using Counts = std::map<std::vector<Token>, int>;

struct Fit {
  int samples = 0, freedom = 0;
  double statistic = 0, p = 0;
  double distance = 0;   // total variation between counts and distribution
  double explained = 0;  // as many samples of the distribution itself stay below it, but for one time in 10,000
};

// Counts against a distribution. From the rarest text on, texts share a bin until it is expected to hold five samples.
inline Fit fit(const Counts& counts, const Distribution& distribution) {
  Fit f;
  bool possible = true;
  for (const auto& [text, count] : counts) f.samples += count, possible = possible && distribution.contains(text);
  std::vector<std::pair<double, std::vector<Token>>> ascending;
  for (const auto& [text, probability] : distribution) ascending.emplace_back(probability, text);
  std::sort(ascending.begin(), ascending.end());
  double bin_observed = 0, bin_expected = 0;
  for (const auto& [probability, text] : ascending) {
    const auto found = counts.find(text);
    const double observed = found == counts.end() ? 0 : found->second, expected = probability * f.samples;
    f.distance += std::fabs(observed - expected) / f.samples / 2;
    f.explained += std::sqrt(probability * (1 - probability) / f.samples) / 2;  // at least the mean of the distance
    bin_observed += observed, bin_expected += expected;
    if (bin_expected < 5) continue;
    f.statistic += (bin_observed - bin_expected) * (bin_observed - bin_expected) / bin_expected;
    ++f.freedom;
    bin_observed = bin_expected = 0;
  }
  --f.freedom;
  f.p = possible ? chi_square_p(f.statistic, f.freedom) : 0;
  // McDiarmid's inequality: one sample moves the distance by 1 / samples at most.
  f.explained += std::sqrt(std::log(1e4) / (2.0 * f.samples));
  return f;
}

}  // namespace sx::testing
