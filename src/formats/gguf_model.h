// GGUF metadata in our terms: the model's configuration and its vocabulary. Used by ModelFile and by the fuzzers.
#pragma once
#include <memory>
#include <string>

#include "formats/model_config.h"
#include "formats/gguf.h"
#include "formats/model_file.h"
#include "formats/tokenizer_data.h"

namespace sx {

// Sizes, norms and RoPE from the keys, optional parts from the tensors, and what the family makes of them.
ModelConfig config_from_gguf(const GgufFile& file, std::span<const NamedTensor> tensors);
// What is said in the usual places, of an architecture that need not be known; what is not there is zero.
ModelConfig outline_from_gguf(const GgufFile& file);
TokenizerData tokenizer_from_gguf(const GgufFile& file, int vocab);
// Opens the file and, if it is the first shard of a split model, its siblings.
std::shared_ptr<ModelFile> open_gguf_model(const std::string& path, Wanted wanted = Wanted::kModel);
// The same checks on a single file in memory; throws what opening would throw. For fuzzing.
void check_gguf_model(std::span<const std::byte> bytes, const std::string& name, Wanted wanted = Wanted::kModel);

}  // namespace sx
