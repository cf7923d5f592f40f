// Tiny GGUF models with MTP blocks behind their layers.
#pragma once
#include <fmt/format.h>

#include <cmath>
#include <random>
#include <string>

#include "support/model_writer.h"

namespace sx::testing {

// The model of `spec` and `blocks` blocks more. The layers are those of the model without blocks.
inline GgufWriter mtp_gguf(TinySpec spec, int blocks) {
  const int layers = spec.layers;
  spec.layers += blocks;
  GgufWriter out = tiny_gguf(spec);
  out.add_u32(spec.arch + ".nextn_predict_layers", uint32_t(blocks));
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto width = int64_t{spec.width};
  for (int i = layers; i < spec.layers; ++i) {
    const auto add = [&](const char* part, DType type, std::vector<int64_t> shape, float mean, float scale) {
      std::vector<float> values(size_t(shape[0]) * size_t(shape.size() > 1 ? shape[1] : 1));
      for (float& value : values) value = mean + scale * normal(random);
      out.add_tensor(fmt::format("blk.{}.nextn.{}.weight", i, part), type, shape, encode(type, values, 1));
    };
    add("eh_proj", spec.weights, {width, 2 * width}, 0, 1 / std::sqrt(2.0f * float(width)));
    for (const char* norm : {"enorm", "hnorm", "shared_head_norm"}) add(norm, DType::kF32, {width}, 1, 0.1f);
  }
  return out;
}

inline void write_mtp_gguf(const std::string& path, const TinySpec& spec, int blocks) {
  write_file(path, mtp_gguf(spec, blocks).bytes());
}

}  // namespace sx::testing
