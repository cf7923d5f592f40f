// A Tensor is a view: type, shape and address. It never owns. Shapes are written outermost first, so a weight that
// maps `in` inputs to `out` outputs is [out, in] and one of its rows is contiguous.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace sx {

struct Tensor {
  DType type = DType::kF32;
  int rank = 0;
  std::array<int64_t, 4> shape{};  // outermost first; entries beyond rank are 0
  const std::byte* data = nullptr;

  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[static_cast<size_t>(i)];
    return n;
  }
  int64_t columns() const { return rank == 0 ? 1 : shape[static_cast<size_t>(rank - 1)]; }
  int64_t rows() const { return columns() == 0 ? 0 : elements() / columns(); }
  size_t row_bytes() const { return dtype_bytes(type, columns()); }
  size_t bytes() const { return row_bytes() * static_cast<size_t>(rows()); }
  const std::byte* row(int64_t i) const { return data + static_cast<size_t>(i) * row_bytes(); }
};

}  // namespace sx
