#include "model/requantise.h"

#include "tensor/blocks.h"

namespace sx {

double weight_bits(DType type) {
  const DTypeInfo& info = dtype_info(type);
  return 8.0 * info.bytes / info.block;
}

Tensor Requantiser::make(const Tensor& from, DType type, std::vector<std::byte>& memory) {
  const int64_t columns = from.columns();
  if (weight_bits(from.type) <= weight_bits(type) || columns % dtype_info(type).block != 0) return from;
  Tensor to = from;
  to.type = type;
  if (sizes_only_) return to;
  memory.resize(to.bytes());
  to.data = memory.data();
  const int64_t rows = from.rows(), shares = pool_.size();
  pool_.run([&](int share) {
    std::vector<float> values(static_cast<size_t>(columns));
    for (int64_t i = rows * share / shares; i < rows * (share + 1) / shares; ++i) {
      dequantise(from.type, from.row(i), columns, values.data());
      quantise(type, values.data(), columns, memory.data() + static_cast<size_t>(i) * to.row_bytes());
    }
  });
  return to;
}

}  // namespace sx
