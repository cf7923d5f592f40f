#include "backend/cpu/linear/expert_rows.h"

#include "backend/backend.h"
#include "backend/cpu/fast_exp.h"

namespace sx::cpu {

void route_row(const ExpertsArgs& args, const float* logits, int32_t* choice, float* weight) {
  const int experts = args.gate_up->experts(), used = args.used;
  const bool sigmoid = args.routing == Routing::kSigmoid;
  float probability[kMostExperts], score[kMostExperts];
  bool taken[kMostExperts] = {};
  if (sigmoid)
    for (int e = 0; e < experts; ++e) probability[e] = 1.0f / (1.0f + fast_exp(-logits[e]));
  for (int e = 0; e < experts; ++e)
    score[e] = !sigmoid ? logits[e] : args.choice_bias ? probability[e] + args.choice_bias[e] : probability[e];
  for (int j = 0; j < used; ++j) {
    int best = -1;
    for (int e = 0; e < experts; ++e)
      if (!taken[e] && (best < 0 || score[e] > score[best])) best = e;
    taken[best] = true;
    choice[j] = best;
    weight[j] = sigmoid ? probability[best] : fast_exp(logits[best] - logits[choice[0]]);
  }
  float total = sigmoid ? 1.0f : 0.0f;
  if (args.renormalise) {
    total = 0;
    for (int j = 0; j < used; ++j) total += weight[j];
    if (sigmoid) total += 1e-20f;  // where every sigmoid is 0
  } else if (!sigmoid) {
    for (int e = 0; e < experts; ++e) total += fast_exp(logits[e] - logits[choice[0]]);
  }
  for (int j = 0; j < used; ++j) weight[j] = weight[j] / total * args.scale;
}

void expert_glu(const ExpertsArgs& args, const float* gate_up, int ffn, float* __restrict out) {
  const float *gates = gate_up, *ups = gate_up + ffn;
  if (args.limit == 0) {
    for (int i = 0; i < ffn; ++i) out[i] = gates[i] / (1.0f + fast_exp(-gates[i])) * ups[i];
    return;
  }
  const float limit = args.limit, alpha = args.alpha;
  for (int i = 0; i < ffn; ++i) {  // a NaN stays one
    const float gate = gates[i] > limit ? limit : gates[i];
    const float low = ups[i] < -limit ? -limit : ups[i], up = low > limit ? limit : low;
    out[i] = gate / (1.0f + fast_exp(-alpha * gate)) * (up + 1.0f);
  }
}

void combine_row(const ExpertsArgs& args, const float* y, const int32_t* place, const float* weight, int width,
                 float* out) {
  constexpr int kPiece = 64;
  for (int from = 0; from < width; from += kPiece) {
    const int count = width - from < kPiece ? width - from : kPiece;
    float sum[kPiece] = {};
    for (int j = 0; j < args.used; ++j) {
      const float* row = y + size_t(place[j]) * size_t(width) + from;
      for (int i = 0; i < count; ++i) sum[i] = j == 0 ? weight[0] * row[i] : sum[i] + weight[j] * row[i];
    }
    for (int i = 0; i < count; ++i) out[from + i] = args.accumulate ? out[from + i] + sum[i] : sum[i];
  }
}

}  // namespace sx::cpu
