// kv_score() over several layers, or averaged, for backends that score one layer at a time.
#pragma once
#include <algorithm>
#include <vector>

#include "backend/ops.h"

namespace sx {

// score_one(args): one layer, not averaged, `out` on the host.
template <class Score>
void score_layers(const KvScoreArgs& args, Score score_one) {
  const size_t layers = std::max<size_t>(1, args.layers.size()), heads = size_t(args.heads),
               chunks = args.borders.size() - 1;
  std::vector<float> all(args.mean ? layers * heads * chunks : 0);
  float* to = args.mean ? all.data() : args.out;
  for (size_t i = 0; i < layers; ++i) {
    KvScoreArgs one = args;
    one.out = to + i * heads * chunks;
    one.q = args.q + i * heads * size_t(args.head_dim);
    if (!args.layers.empty()) one.layer = args.layers[i];
    one.layers = {}, one.mean = false;
    score_one(one);
  }
  if (!args.mean) return;
  std::fill_n(args.out, chunks, 0.0f);
  for (size_t r = 0; r < layers * heads; ++r)
    for (size_t c = 0; c < chunks; ++c) args.out[c] += all[r * chunks + c];
  for (size_t c = 0; c < chunks; ++c) args.out[c] /= float(layers * heads);
}

}  // namespace sx
