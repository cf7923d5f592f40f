// A plan says where every tensor of an output comes from: which rows and columns of which source, in which type. Making
// files of models is making a list of plans; one function carries them all out, a few rows at a time.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/model_file.h"
#include "formats/tensor_output.h"

namespace sx {

struct TensorPlan {
  OutputTensor out;
  const NamedTensor* source = nullptr;  // null: `values`, or zeros if there are none
  std::vector<int64_t> rows;            // output row -> source row, -1: zeros; empty: the same rows
  std::vector<int64_t> columns;         // source column -> output column, the others are zeros; empty: the same columns
  float scale = 1, offset = 0;
  std::vector<float> values;  // a small tensor given outright
  // A source that is made in `memory` when its turn comes; null: `source`.
  std::function<NamedTensor(std::vector<std::byte>& memory)> made{};
};

using Progress = std::function<void(double done)>;  // 0..1; may throw to cancel

struct WriteOptions {
  int threads = 0;  // 0: one per core
  Progress progress{};
  bool nearest = false;  // plain rounding (model/convert/nearest.h) instead of the search for the least error
};

// Rows whose type does not change are copied byte by byte. Throws, naming file and tensor, for values that are not
// finite or too large for the type. `release`: called with every source that is done.
void write_tensors(const std::function<void(const Tensor&)>& release, const std::vector<TensorPlan>& plans,
                   TensorOutput& out, const WriteOptions& options);

std::vector<OutputTensor> outputs_of(const std::vector<TensorPlan>& plans);

// What a finished (or only planned) file is like.
struct ConvertReport {
  std::string path;
  uint64_t bytes = 0;
  std::vector<std::string> notes;  // what was done otherwise than asked, one sentence each
  std::vector<OutputTensor> tensors;
};

// Rows of the q and k matrices of a folder are in halves (pair i: rows i and i + d/2 of a head), those of a llama GGUF
// interleaved (2i, 2i + 1). Output row -> source row for all heads; empty if the styles agree.
std::vector<int64_t> rope_row_order(const ModelConfig& config, int heads, RopeStyle to);

// What differs between a model's folder and its GGUF file besides names.
struct TensorForm {
  RopeStyle style;        // of the rows of q and k
  float norm_offset = 0;  // ModelConfig::norm_offset
};

// Norms, biases and routers, which files of quantised models have as floats.
bool stays_float(const OutputTensor& tensor);

// The same model with the experts of each layer in three stacks, as GGUF files have them.
ModelConfig with_stacked_experts(const ModelConfig& config);

// The tensors of the same model in that form, each in the type that `type_of` gives. Parts that `config` has and the
// file has not (biases) become zeros.
std::vector<TensorPlan> plan_model(const ModelFile& file, const ModelConfig& config, const TensorForm& to,
                                   const std::function<DType(const OutputTensor&, const NamedTensor*)>& type_of);

}  // namespace sx
