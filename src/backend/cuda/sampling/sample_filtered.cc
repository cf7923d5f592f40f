#include "backend/cuda/sampling/sample_filtered.h"

#include <cmath>

#include "base/rng.h"

namespace sx::cuda {

Token sample_filtered(std::span<const Candidate> best, const Sampling& s, uint64_t position) {
  size_t count = 0;
  while (count < best.size() && std::isfinite(best[count].logit)) ++count;
  if (count == 0) return kNoToken;
  const double top = double(best[0].logit);
  if (s.top_p < 1) {  // the shortest prefix that holds top_p of what top-k left
    double total = 0, kept = 0;
    for (size_t i = 0; i < count; ++i) total += std::exp(double(best[i].logit) - top);
    size_t n = 0;
    do kept += std::exp(double(best[n++].logit) - top);
    while (n < count && kept < double(s.top_p) * total);
    count = n;
  }
  if (s.min_p > 0) {
    const double least = top + std::log(double(s.min_p));
    while (count > 1 && double(best[count - 1].logit) < least) --count;
  }
  Token chosen = kNoToken;
  double most = 0;
  const double inverse = 1.0 / double(s.temperature);
  for (const Candidate& c : best.first(count)) {
    const double score = double(c.logit) * inverse + gumbel(s.seed, position, uint64_t(c.token));
    if (chosen == kNoToken || score > most || (score == most && c.token < chosen)) most = score, chosen = c.token;
  }
  return chosen;
}

}  // namespace sx::cuda
