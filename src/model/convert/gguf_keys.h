// A configuration and a vocabulary as the keys of a GGUF file.
#pragma once
#include <string>

#include "formats/model_config.h"
#include "formats/gguf_writer.h"
#include "formats/tokenizer_data.h"

namespace sx {

// Architecture, sizes, RoPE, window. Throws, naming `file`, for what GGUF cannot say. `type`: of most matrices.
void add_config_keys(GgufKeys& keys, const ModelConfig& config, DType type, const std::string& file);
// The vocabulary's arrays and ids; a vocabulary without tokens adds only the ids it knows.
void add_tokenizer_keys(GgufKeys& keys, const TokenizerData& tokenizer);
// All keys of another file but those that describe its types or its place among shards.
void copy_keys(GgufKeys& keys, const GgufFile& from, DType type);
// Explicit divisors for rope_freqs.weight; empty if the model needs none.
std::vector<float> rope_divisors(const ModelConfig& config);

}  // namespace sx
