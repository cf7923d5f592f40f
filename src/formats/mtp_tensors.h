// Multi-token prediction (MTP): files may hold blocks behind the model's own layers that predict further tokens. Their
// tensors are called "blk.{layers}." and on, in GGUF's names; the model itself never reads them.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/model_config.h"
#include "formats/model_file.h"

namespace sx {

// What a block has beside the tensors of a layer, in GGUF's names, each with ".weight".
inline constexpr std::string_view kMtpInput = "nextn.eh_proj", kMtpTokenNorm = "nextn.enorm",
                                  kMtpStateNorm = "nextn.hnorm", kMtpFinalNorm = "nextn.shared_head_norm",
                                  kMtpEmbedding = "nextn.embed_tokens", kMtpHead = "nextn.shared_head_head";

// The canonical name of a folder's tensor that belongs to a block: DeepSeek's form "model.layers.61.eh_proj.weight", a
// layer behind the last one, or MiMo's "model.mtp_layers.0.input_proj.weight". Empty: it belongs to none.
std::optional<std::string> mtp_tensor_name(std::string_view hf_name, const ModelConfig& config);

// Takes the tensors of blocks, "blk.{layers}." and on, out of `tensors`, and counts the blocks that are whole enough to
// have an input. `said`: blocks that the file claims to have; there may be none of them.
std::vector<NamedTensor> take_mtp_tensors(int said, std::vector<NamedTensor>& tensors, ModelConfig& config);

}  // namespace sx
