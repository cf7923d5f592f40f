// config.json and its companions of a Hugging Face folder, written from a configuration.
#pragma once
#include <string>

#include "formats/model_config.h"
#include "formats/tokenizer_data.h"
#include "tensor/dtype.h"

namespace sx {

// Throws, naming `file` (where the configuration came from), if no class of transformers means this model.
// `type`: of most weights. Biases count as present for all matrices of a group if any has them (see hf_biases).
std::string config_to_json(const ModelConfig& config, const TokenizerData& tokenizer, DType type,
                           const std::string& file);
std::string generation_config_to_json(const TokenizerData& tokenizer);

// The same function in terms of what a folder can say: Hugging Face's Llama has biases in q, k, v and output together.
ModelConfig with_hf_biases(const ModelConfig& config);
// The parameters of Llama 3's scaling that give these explicit divisors, as `rope` with the divisors gone; throws if
// none do.
RopeConfig rope_without_factors(const RopeConfig& rope, const std::string& file);
// The divisors that Llama 3's scaling means: [dims / 2].
std::vector<float> llama3_factors(const RopeConfig& rope);

}  // namespace sx
