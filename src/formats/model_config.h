// What a model is: sizes, RoPE, norms, and which optional parts it has. Filled from GGUF metadata or config.json by
// src/formats, checked there against sane ranges; everything downstream trusts it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/rope_style.h"

namespace sx {

enum class Arch { kLlama, kQwen2, kQwen3 };

enum class RopeScaling { kNone, kLinear, kDynamic, kLlama3, kYarn };

struct RopeConfig {
  RopeStyle style = RopeStyle::kHalves;
  int dims = 0;  // rotated leading dimensions of a head (usually head_dim)
  double base = 10000;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;
  int original_context = 0;  // context of the unscaled model (dynamic, llama3, yarn); 0: the trained context
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1, attention_factor = 0, mscale = 0,
         mscale_all_dim = 0;   // yarn; attention_factor 0: derived
  bool yarn_truncate = true;   // yarn: round the correction range to whole dimensions
  std::vector<float> factors;  // explicit per-frequency divisors (GGUF rope_freqs.weight), [dims/2] or empty
};

struct ModelConfig {
  Arch arch = Arch::kLlama;
  std::string name;       // from the file, may be empty
  std::string arch_name;  // "llama", "mistral", "qwen2", "qwen3" as the file says
  int layers = 0, width = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  int context = 0;  // trained context
  float norm_eps = 1e-5f;
  int window = 0;  // sliding-window attention: keys within the last `window` positions (self included); 0: all
  std::vector<uint8_t> windowed_layers;  // per layer, empty: `window` holds for all layers
  bool tied_head = false;                // output head is the embedding
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  bool qk_norm = false;  // qwen3: RMS norm of each q and k head before RoPE
  RopeConfig rope;
};

}  // namespace sx
