// The tensors of a mixture's experts, in the forms in which files have them.
#pragma once
#include <string>
#include <vector>

#include "formats/model_file.h"
#include "formats/validate.h"

namespace sx {

// Finds the form in the names of the tensors.
void find_expert_form(std::span<const NamedTensor> tensors, ModelConfig& config);
// What a layer of these parts has; `prefix`: "blk.3.".
void expect_experts(const ModelConfig& config, const LayerParts& parts, const std::string& prefix,
                    std::vector<ExpectedTensor>& out);

}  // namespace sx
