// A layer's experts as stacks [experts, out, in], whatever the form in which a file has them (ExpertForm).
#pragma once
#include <string>
#include <vector>

#include "backend/ranks/ranks.h"
#include "formats/model_file.h"

namespace sx {

// Stacks of a layer: views of the file, or of memory of their own.
struct ExpertStacks {
  Tensor gate, up, down;
  std::vector<float> gate_up_bias, down_bias;  // [experts, 2 ffn] gates first, [experts, width]; empty: none
  std::vector<std::vector<std::byte>> memory;
};
ExpertStacks expert_stacks(const ModelFile& file, const std::string& prefix, const LayerParts& parts);
// One of them: a view of the file, or of `memory`.
enum class ExpertPart { kGate, kUp, kDown };
Tensor expert_stack(const ModelFile& file, const std::string& prefix, const LayerParts& parts, ExpertPart part,
                    std::vector<std::byte>& memory);
// Its type, without making it.
DType expert_type(const ModelFile& file, const std::string& prefix, ExpertPart part);
// The biases of a layer with experts, as ExpertStacks has them.
void read_expert_biases(const ModelFile& file, const std::string& prefix, const LayerParts& parts, ExpertStacks& out);
// Leaves these columns of gates and ups, and these of the result, with their biases.
void keep_columns(ExpertStacks& stacks, RankShare inner, RankShare out);

}  // namespace sx
