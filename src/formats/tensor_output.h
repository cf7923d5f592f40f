// What both writers of weights have in common: the tensors are known in advance and written one after another, in
// pieces, so that a model never has to be in memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace sx {

struct OutputTensor {
  std::string name;
  DType type = DType::kF32;
  std::vector<int64_t> shape;  // outermost first; rows are whole blocks

  int64_t columns() const { return shape.empty() ? 1 : shape.back(); }
  int64_t elements() const {
    int64_t n = 1;
    for (const int64_t size : shape) n *= size;
    return n;
  }
  uint64_t bytes() const { return dtype_bytes(type, elements()); }
};

class TensorOutput {
 public:
  virtual ~TensorOutput() = default;
  // Tensors in the given order, each begun once and then written in full.
  virtual void begin(size_t tensor) = 0;
  virtual void write(std::span<const std::byte> bytes) = 0;
  virtual void write_zeros(uint64_t count) = 0;
  virtual void finish() = 0;  // until then nothing has its name
};

}  // namespace sx
