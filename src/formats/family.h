// A model family: how its files name what they say. One file of src/formats/families fills in one Family, and
// families/table.cc lists them; nothing else in the project asks which family a model is of.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_text.h"
#include "formats/model_config.h"

namespace sx {

class GgufKeys;
class GgufSettings;
class HfSettings;
struct NamedTensor;

// A tensor of a folder, without ".weight" or ".bias" and, where it belongs to a layer, without "model.layers.N."; ""
// for ours: it is one that this family does not have.
struct TensorName {
  std::string_view theirs, ours;
};

struct Family {
  const char* name;        // "llama"
  const char* gguf;        // general.architecture
  const char* hf_class;    // "LlamaForCausalLM"
  const char* model_type;  // of config.json
  RopeStyle gguf_style, hf_style = RopeStyle::kHalves;
  // What differs from a Llama. The sizes, RoPE and optional parts that are said in the usual places have been read.
  void (*from_gguf)(const GgufSettings&, ModelConfig&) = nullptr;
  void (*from_hf)(const HfSettings&, ModelConfig&) = nullptr;
  // The reverse: keys beyond a Llama's of a GGUF file (below `prefix`) and of config.json, for models that are written.
  // Throws, naming `file`, for what cannot be said. Null: no such files are written.
  void (*to_gguf)(const ModelConfig&, const std::string& prefix, GgufKeys&) = nullptr;
  void (*to_hf)(const ModelConfig&, const std::string& file, nlohmann::ordered_json&) = nullptr;
  std::span<const TensorName> names{};       // tensors of folders that are not called as in a Llama
  std::span<const TensorName> gguf_names{};  // the same for GGUF files
  // Defaults of its class in transformers, and what its config.json may say beyond a Llama's.
  Activation activation = Activation::kSilu;
  int head_dim = 0;  // 0: width / heads
  double rope_base = 10000;
  bool tied = false;      // the head is the embedding
  float norm_offset = 0;  // ModelConfig::norm_offset of its folders
  bool fused = false;     // its files have matrices that split_fused_tensors() takes apart; they are written apart
  bool partial_rotary = false;
  bool joint_bias = false;  // "attention_bias" stands for the biases of q, k, v and output
  bool (*reads_quantised)(const Json&) = [](const Json&) { return false; };  // "quantization_config" it can read
  bool gguf_untruncated = false;                                             // YaRN in its GGUF files rounds no borders
  bool layer_ropes = false;  // "rope_parameters" may differ between layer types
};

// Tensors that hold several of ours one below the other become these: "attn_qkv" q, k and v; "ffn_gate_up" (and
// "ffn_up" of a gated layer without "ffn_gate") gate and up.
void split_fused_tensors(const ModelConfig& config, std::vector<NamedTensor>& tensors);

// GGUF tensors by the names that we use (Family::gguf_names).
void rename_tensors(const Family& family, std::vector<NamedTensor>& tensors);

std::span<const Family* const> families();
const Family* family_of_gguf(std::string_view architecture);                             // or null
const Family* family_of_folder(std::string_view hf_class, std::string_view model_type);  // either may be empty
// The words for a file that is of none: what its layers would need, as far as that is known.
std::string why_unsupported(std::string_view architecture);

}  // namespace sx
