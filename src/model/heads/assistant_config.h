// Reads the config.json of a Gemma 4 assistant: a few layers without keys and values, each of which attends to the
// cells of a layer of the target. It is checked against the target it is meant for; what only a Gemma 4 target could
// give it (other sizes of heads, RoPE of a part of a head) is refused with that reason.
#pragma once
#include <string>
#include <unordered_set>

#include "base/json_text.h"
#include "model/heads/head_config.h"

namespace sx {

bool is_assistant(const Json& json, const std::unordered_set<std::string>& names, const std::string& file);
// `names`: canonical names of the tensors there are. Throws sx::Error.
void read_assistant(const Json& json, const std::string& file, const std::unordered_set<std::string>& names,
                    const ModelConfig& target, HeadConfig& config);

}  // namespace sx
