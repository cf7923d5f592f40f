// config.json of a Hugging Face folder in our terms, and the translation of its tensor names.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "formats/model_config.h"
#include "formats/tokenizer_data.h"

namespace sx {

// `file`: for messages. The result is not yet validated for ranges (validate_config does that).
ModelConfig config_from_json(std::string_view text, const std::string& file);
// What is said in the usual places, of an architecture that need not be known; what is not there is zero.
ModelConfig outline_from_json(std::string_view text, const std::string& file);
// The special ids that config.json gives (bos, eos and all ends, pad); checked against the vocabulary.
void token_ids_from_json(std::string_view text, const std::string& file, TokenizerData& data);
// The chat template of a tokenizer_config.json: a string, or the one named "default" of a list. Empty if none.
std::string chat_template_from_json(std::string_view text, const std::string& file);
// "model.layers.3.self_attn.q_proj.weight" -> "blk.3.attn_q.weight"; empty if the name is not one of ours.
// Without a family: the names of a Llama.
std::optional<std::string> canonical_name(std::string_view hf_name, const Family* family = nullptr);
// The reverse; empty if the folder's models have no such tensor.
std::optional<std::string> hf_name(std::string_view canonical, const Family* family = nullptr);
// Buffers that old checkpoints store and that everyone computes anew.
bool is_ignored_name(std::string_view hf_name);

}  // namespace sx
