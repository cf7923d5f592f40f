// Weights as safetensors files in a folder: one file, or several with an index when they would be too large for one.
// The format knows no quantised types: such a matrix becomes bytes, with its type and shape in the metadata (see
// model/heads/head_file.h, which reads them).
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/output_file.h"
#include "formats/tensor_output.h"

namespace sx {

class SafetensorsOutput : public TensorOutput {
 public:
  // `folder` exists. `most`: bytes of data in one file, unless a single tensor is larger.
  SafetensorsOutput(std::string folder, std::vector<OutputTensor> tensors, bool force, uint64_t most = 5'000'000'000);
  void begin(size_t tensor) override;
  void write(std::span<const std::byte> bytes) override;
  void write_zeros(uint64_t count) override;
  void finish() override;

 private:
  struct Shard {
    std::string path;
    size_t first, end;  // tensors
    std::string header;
    uint64_t data = 0;
  };
  std::string folder_;
  std::vector<OutputTensor> tensors_;
  bool force_;
  std::vector<Shard> shards_;
  std::vector<std::unique_ptr<OutputFile>> files_;  // one per shard begun; named together in finish()
  size_t next_ = 0;
  uint64_t left_ = 0;
};

}  // namespace sx
