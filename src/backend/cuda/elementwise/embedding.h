// How place_table() lays a table out for embed().
#pragma once
#include <cstddef>
#include <cstdint>

#include "tensor/tensor.h"

namespace sx::cuda {

enum class TableKind : uint8_t { kF32, kF16, kBF16, kInt8 };
struct TableView {
  TableKind kind;
  int rows, width;
  int sub;              // elements that share a scale and an offset
  const void* data;     // [rows, width]
  const float* scale;   // [rows, width / sub]; null unless kInt8
  const float* offset;  // the same; null where the type has none
};
// Of a tensor that place_table() returned.
TableView table_view(const Tensor& placed);

}  // namespace sx::cuda
