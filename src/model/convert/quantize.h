// A model in another type: GGUF or folder in, GGUF out.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/convert/plan.h"
#include "formats/gguf_writer.h"

namespace sx {

// Types by kind of tensor. Norms and biases stay F32.
struct TypeChoice {
  DType matrices = DType::kQ8_0;
  std::optional<DType> embedding{}, output{};           // default: Q8_0 beside 4-bit matrices, else like the matrices
  bool requantise = false;                              // quantised sources are accepted, at a loss
  std::vector<std::pair<std::string, DType>> single{};  // of tensors by their names, before everything else
};

// The type of a tensor under the choice; rows that a block type does not divide fall back to Q8_0 or F16 with a note.
enum class TensorPart { kMatrix, kEmbedding, kOutput };
DType choose_type(const TypeChoice& choice, const OutputTensor& tensor, std::vector<std::string>& notes);
DType choose_type(const TypeChoice& choice, const OutputTensor& tensor, TensorPart part,
                  std::vector<std::string>& notes);

struct QuantizeJob {
  std::string out{};
  TypeChoice types{};
  bool force = false, dry_run = false;
  WriteOptions write{};
};

// What models and heads have in common: types that cannot be written, single tensors that are not among `plans`, and
// sources that are quantised already are refused.
void check_types(const QuantizeJob& job);
void check_singles(const TypeChoice& choice, const std::vector<TensorPlan>& plans, const std::string& file);
void check_source(const NamedTensor& source, DType type, bool requantise);

// `vocabulary`: in GGUF's form, for folders; a GGUF source keeps its own keys.
ConvertReport quantize_model(const ModelFile& file, const TokenizerData& vocabulary, const QuantizeJob& job);

// What quantize and convert share: all the keys of a GGUF file for the model, and the file written from plans.
GgufKeys gguf_keys_for(const ModelFile& file, const TokenizerData& vocabulary, DType type);
TensorForm gguf_form(const ModelConfig& config);
void add_rope_plan(const ModelConfig& config, std::vector<TensorPlan>& plans);
// Plans of plan_model() with the names of the family's GGUF files, and the divisors of RoPE.
void finish_gguf_plans(const ModelConfig& config, std::vector<TensorPlan>& plans);
ConvertReport write_gguf(const ModelFile& file, const GgufKeys& keys, const std::vector<TensorPlan>& plans,
                         const QuantizeJob& job);

}  // namespace sx
