// The checks that every opened model passes, whatever its format: hyper-parameters in sane ranges, token ids inside the
// vocabulary, and exactly the tensors that the architecture needs, with the right shapes and types.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/model_config.h"
#include "formats/model_file.h"
#include "formats/tokenizer_data.h"

namespace sx {

// Ranges and relations of the numbers. Errors name `file` and the field.
void validate_config(const ModelConfig& config, const std::string& file);
// Lists what is missing, mis-shaped, of a wrong type or unexpected (the first few), naming the file of each tensor.
void validate_tensors(const ModelConfig& config, std::span<const NamedTensor> tensors, const std::string& file);
// Token ids within [0, vocab); list lengths agree with each other and fit the vocabulary.
void validate_tokenizer(const TokenizerData& data);

struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
  bool bytes = false;  // holds bytes of a format of its own
};
// Canonical names and shapes of all tensors of such a model, in file order.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

}  // namespace sx
