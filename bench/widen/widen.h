// The zero-padded upscale: a model embedded in a larger Llama shape that computes the same function. All that is new is
// zero; norms are rescaled for the longer rows, and every old rotary pair sits on a new one that turns at the same
// speed. A small model's text at a large model's cost.
#pragma once
#include <string>

#include "model/convert/quantize.h"

namespace sx {

// 0: as in the source.
struct WideShape {
  int width = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
};

// "llama-8b", "llama-3b", "llama-1b", "llama-70b"; throws for other names, listing them.
WideShape named_shape(const std::string& name);

// Always a llama GGUF. `vocabulary`: in GGUF's form.
ConvertReport widen_model(const ModelFile& file, const TokenizerData& vocabulary, const WideShape& shape,
                          const QuantizeJob& job);

// Parts of it, for tests and for heads: the configuration of the upscale, and the places of old elements in the new
// shape.
struct WideMaps {
  ModelConfig config;                                // of the upscale
  std::vector<int64_t> width, ffn;                   // old element -> new element
  std::vector<int64_t> query, key, value, attended;  // rows of q, k, v; columns of the attention's output
  float norm_scale = 1, query_scale = 1;
};
// `style`: how the upscale pairs the rotated dimensions of q and k.
WideMaps wide_maps(const ModelConfig& from, const WideShape& shape, RopeStyle style, const std::string& file);
// Old rows -> new rows turned round: for each of `count` new rows the old one, or -1.
std::vector<int64_t> rows_from(const std::vector<int64_t>& places, int64_t count);

}  // namespace sx
