// place_table: copies the embedding table to the device in the layout that embed() reads.
#include "backend/cuda/elementwise/embedding.h"

#include <specextend/error.h>

#include <algorithm>
#include <string>
#include <vector>

#include "backend/cuda/elementwise/norm_glu_embed.h"
#include "tensor/blocks.h"

namespace sx::cuda {
namespace {

size_t up(size_t bytes) { return (bytes + 255) / 256 * 256; }

bool has_offset(DType type) { return type != DType::kQ4_0 && affine_traits(type).has_offset; }

void upload(const void* to, const void* from, size_t bytes) {
  check(cudaMemcpy(const_cast<void*>(to), from, bytes, cudaMemcpyHostToDevice), "embedding table");
}

}  // namespace

TableView table_view(const Tensor& t) {
  TableView view{TableKind::kF32, int(t.rows()), int(t.columns()), 1, t.data, nullptr, nullptr};
  if (t.type == DType::kF16) view.kind = TableKind::kF16;
  if (t.type == DType::kBF16) view.kind = TableKind::kBF16;
  if (!dtype_is_quantised(t.type)) return view;
  const auto elements = size_t(t.elements());
  view.kind = TableKind::kInt8;
  view.sub = affine_traits(t.type).sub;
  view.scale = reinterpret_cast<const float*>(t.data + up(elements));
  if (has_offset(t.type)) view.offset = view.scale + up(elements / size_t(view.sub) * sizeof(float)) / sizeof(float);
  return view;
}

Tensor place_table(const Tensor& table, DeviceMemory& memory) {
  Tensor placed = table;
  const DType type = table.type;
  if (table.rank != 2 || table.elements() <= 0) throw Error("embedding table: expected two dimensions, none of them 0");
  if (!dtype_is_quantised(type)) {
    if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16)
      throw Error("embedding table of type " + std::string(dtype_name(type)) + ": expected floats or a quantised type");
    placed.data = static_cast<const std::byte*>(memory.take(table.bytes(), "the embedding table"));
    if (!memory.counts_only()) upload(placed.data, table.data, table.bytes());
    return placed;
  }
  const auto elements = size_t(table.elements()), width = size_t(table.columns()), rows = size_t(table.rows());
  const size_t sub = size_t(affine_traits(type).sub), subs = width / sub;
  const size_t scales = up(rows * subs * sizeof(float));
  placed.data = static_cast<const std::byte*>(
      memory.take(up(elements) + scales * (has_offset(type) ? 2 : 1), "the embedding table"));
  if (memory.counts_only()) return placed;
  const TableView view = table_view(placed);
  const size_t step = std::max<size_t>(1, (size_t(4) << 20) / width);  // rows unpacked at a time
  std::vector<int8_t> q(step * width);
  std::vector<float> scale(step * subs), offset(step * subs);
  for (size_t first = 0; first < rows; first += step) {
    const size_t n = std::min(step, rows - first);
    unpack_affine(type, table.row(int64_t(first)), int64_t(n * width), q.data(), scale.data(), offset.data());
    if (type == DType::kQ4_0)  // d * (q - 8) is exact, its sum with -8 d is not always
      for (size_t i = 0; i < n * width; ++i) q[i] = int8_t(q[i] - 8);
    upload(static_cast<const int8_t*>(view.data) + first * width, q.data(), n * width);
    upload(view.scale + first * subs, scale.data(), n * subs * sizeof(float));
    if (view.offset) upload(view.offset + first * subs, offset.data(), n * subs * sizeof(float));
  }
  return placed;
}

}  // namespace sx::cuda
