// What a model is: a table of the parts of its layers, and what surrounds them. Filled from GGUF metadata or
// config.json by the model's family (src/formats/families), checked against sane ranges by validate.cc; everything
// downstream trusts it and asks for parts, never for the name of a family.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/activation.h"
#include "tensor/rope_style.h"
#include "tensor/routing.h"

namespace sx {

struct Family;

enum class RopeScaling { kNone, kLinear, kDynamic, kLlama3, kYarn, kLongRope };

struct RopeConfig {
  RopeStyle style = RopeStyle::kHalves;
  int dims = 0;  // rotated leading dimensions of a head (usually head_dim)
  double base = 10000;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;
  int original_context = 0;  // context of the unscaled model (dynamic, llama3, yarn, longrope); 0: the trained context
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1, attention_factor = 0, mscale = 0,
         mscale_all_dim = 0;        // yarn, longrope; attention_factor 0: derived
  bool yarn_truncate = true;        // yarn: round the correction range to whole dimensions
  std::vector<float> factors;       // explicit per-frequency divisors (GGUF rope_freqs.weight), [dims/2] or empty
  std::vector<float> long_factors;  // longrope: the divisors where the context is longer than original_context

  bool operator==(const RopeConfig&) const = default;
};

enum class HeadNorm {
  kNone,
  kEach,    // RMS norm of each q and k head before RoPE, weights [head_dim]
  kBehind,  // the same behind RoPE
  kWhole    // RMS norm over all of q and over all of k before RoPE, weights [heads * head_dim], [kv_heads * head_dim]
};

// How a file holds the weights of a layer's experts.
enum class ExpertForm {
  kStacked,   // "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps": [experts, out, in]
  kSeparate,  // "ffn_gate.3", "ffn_up.3", "ffn_down.3": [out, in]
  kFused,     // gpt-oss folders: "ffn_gate_up_exps" [experts, in, 2 ffn], gates and ups alternate; "ffn_down_exps"
              // [experts, in, out]
  kBlocks,    // the same in MXFP4: ".blocks" [experts, out, in / 32, 16] and ".scales" [experts, out, in / 32]
};

inline constexpr int kNoRope = -1;
inline constexpr int kMostLayers = 1024;

// What one layer is made of.
struct LayerParts {
  int heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  int window = 0;  // sliding-window attention: keys within the last `window` positions (self included); 0: all
  int rope = 0;    // which of the model's RoPEs: 0: ModelConfig::rope, i: more_ropes[i - 1]; kNoRope: none
  // Norms on the way into attention and feed-forward, and on what comes out of them, before it is added.
  bool attention_norm = true, attention_post_norm = false, ffn_norm = true, ffn_post_norm = false;
  bool parallel = false;  // the feed-forward reads what attention reads; there is one norm for both
  HeadNorm qk_norm = HeadNorm::kNone;
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  bool gated = true;  // activation(gate) * up; else activation(up)
  Activation activation = Activation::kSilu;
  float attention_scale = 0;     // of q k before the softmax; 0: 1 / sqrt(head_dim)
  float attention_soft_cap = 0;  // cap * tanh(score / cap) before the softmax; 0: none
  bool sinks = false;            // a logit per head that takes part in the softmax and has no value

  // Mixtures: experts of the layer, of `ffn` each, and those that a row uses; 0: one feed-forward for all rows.
  int experts = 0, experts_used = 0;
  Routing routing = Routing::kSoftmax;
  bool renormalise = true;  // the weights of the chosen experts add up to expert_scale
  float expert_scale = 1;
  bool router_bias = false, expert_bias = false;
  float swiglu_limit = 0, swiglu_alpha = 1.702f;  // see ExpertsArgs

  bool operator==(const LayerParts&) const = default;
};

// The parts that ModelConfig inherits are those of its layers; where layers differ, `each` has them one by one, and the
// inherited numbers are the largest.
struct ModelConfig : LayerParts {
  const Family* family = nullptr;
  std::string name;       // from the file, may be empty
  std::string arch_name;  // "llama", "mistral", "qwen2", "qwen3", ... as the file says
  int layers = 0, width = 0, vocab = 0;
  int context = 0;               // trained context
  std::vector<LayerParts> each;  // [layers]; empty: all layers are alike
  float norm_eps = 1e-5f;
  bool centred_norms = false;  // LayerNorm instead of RMS norm
  bool norm_bias = false;      // of centred norms
  float norm_offset = 0;       // added to the weights of norms as the file has them (Gemma's folders: 1)
  bool tied_head = false;      // output head is the embedding
  float embedding_scale = 1;   // of the embedded tokens
  float residual_scale = 1;    // of what attention and feed-forward add
  float logit_scale = 1;
  float final_soft_cap = 0;  // of the logits; 0: none
  // Queries grow with their position p: times 1 + query_growth * ln(1 + floor(p / query_period)).
  float query_growth = 0;
  int query_period = 0;
  ExpertForm expert_form = ExpertForm::kStacked;
  RopeConfig rope;
  std::vector<RopeConfig> more_ropes;
  // Blocks for multi-token prediction that the file has behind the layers (mtp_tensors.h). Only a drafter reads them.
  int mtp_blocks = 0;
  bool mtp_state_first = false;  // their input is the state, then the embedding; else the other way round

  const LayerParts& layer(int i) const { return each.empty() ? *this : each[static_cast<size_t>(i)]; }
  int ropes() const { return 1 + static_cast<int>(more_ropes.size()); }
  const RopeConfig& rope_at(int i) const { return i == 0 ? rope : more_ropes[static_cast<size_t>(i - 1)]; }
  // Whether all keys are rotated alike, so that cells can be moved to other positions.
  bool one_rope() const {
    for (int i = 0; i < layers; ++i)
      if (layer(i).rope != 0) return false;
    return true;
  }
  // Lets `body` change the layers one by one.
  template <class Body>
  void for_each_layer(Body body) {
    if (each.empty()) each.assign(static_cast<size_t>(layers), *this);
    for (int i = 0; i < layers; ++i) body(i, each[static_cast<size_t>(i)]);
    if (layers > 0 && each == std::vector<LayerParts>(each.size(), each[0])) {
      static_cast<LayerParts&>(*this) = each[0];
      each.clear();
    }
  }
};

// Per layer whether it has a window; empty: all have, or none.
std::vector<uint8_t> windowed_layers(const ModelConfig& config);
// Gives the model's window to these layers only; empty: to all.
void set_windowed_layers(ModelConfig& config, const std::vector<uint8_t>& windowed);
// Gives windowed layers a RoPE of their own.
void set_window_rope(ModelConfig& config, const RopeConfig& rope);

}  // namespace sx
