#include "support/reference_experts.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace sx {
namespace {

using Doubles = std::vector<double>;

// y = W x + bias of expert e.
Doubles apply(const float* weight, int out, int e, const float* bias, const Doubles& x) {
  Doubles y(static_cast<size_t>(out));
  for (size_t o = 0; o < y.size(); ++o) {
    const size_t row = static_cast<size_t>(e) * y.size() + o;
    double sum = bias ? static_cast<double>(bias[row]) : 0;
    for (size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(weight[row * x.size() + i]) * x[i];
    y[o] = sum;
  }
  return y;
}

double activated(const ExpertsArgs& a, double gate, double up) {
  if (a.limit == 0) return gate / (1 + std::exp(-gate)) * up;
  const auto limit = static_cast<double>(a.limit);
  gate = std::min(gate, limit);
  up = std::clamp(up, -limit, limit);
  return gate / (1 + std::exp(-static_cast<double>(a.alpha) * gate)) * (up + 1);
}

struct Choice {
  int expert;
  double weight;
};

std::vector<Choice> route(const ExpertsArgs& a, const float* logits) {
  const auto experts = static_cast<size_t>(a.gate_up->experts());
  const bool sigmoid = a.routing == Routing::kSigmoid;
  const auto largest = static_cast<double>(*std::max_element(logits, logits + experts));
  std::vector<Choice> choices;
  Doubles score;
  double total = 0;
  for (size_t e = 0; e < experts; ++e) {
    const auto logit = static_cast<double>(logits[e]);
    const double weight = sigmoid ? 1 / (1 + std::exp(-logit)) : std::exp(logit - largest);
    const double bias = a.choice_bias ? static_cast<double>(a.choice_bias[e]) : 0;
    choices.push_back({static_cast<int>(e), weight});
    score.push_back(sigmoid ? weight + bias : logit);
    total += weight;
  }
  const auto by_score = [&](const Choice& i, const Choice& j) {
    return score[static_cast<size_t>(i.expert)] > score[static_cast<size_t>(j.expert)];
  };
  std::stable_sort(choices.begin(), choices.end(), by_score);
  choices.resize(static_cast<size_t>(a.used));
  if (sigmoid) total = 1;
  if (a.renormalise) {
    total = 0;
    for (const Choice& choice : choices) total += choice.weight;
  }
  for (Choice& choice : choices) choice.weight *= static_cast<double>(a.scale) / total;
  return choices;
}

}  // namespace

void reference_experts(const ExpertsArgs& a, const float* gate_up, const float* down) {
  const auto width = static_cast<size_t>(a.gate_up->in()), experts = static_cast<size_t>(a.gate_up->experts());
  for (size_t r = 0; r < static_cast<size_t>(a.rows); ++r) {
    const Doubles x(a.x + r * width, a.x + (r + 1) * width);
    Doubles sum(width);
    for (const auto& [expert, weight] : route(a, a.logits + r * experts)) {
      const Doubles gates = apply(gate_up, a.gate_up->out(), expert, a.gate_up_bias, x);
      Doubles inner(gates.size() / 2);
      for (size_t i = 0; i < inner.size(); ++i) inner[i] = activated(a, gates[i], gates[i + inner.size()]);
      const Doubles y = apply(down, a.down->out(), expert, a.down_bias, inner);
      for (size_t i = 0; i < width; ++i) sum[i] += weight * y[i];
    }
    float* out = a.out + r * width;
    for (size_t i = 0; i < width; ++i)
      out[i] = static_cast<float>(a.accumulate ? static_cast<double>(out[i]) + sum[i] : sum[i]);
  }
}

}  // namespace sx
