// CudaKv: device memory for the cells of a store, and the checks of its geometry.
#include <specextend/error.h>

#include <string>

#include "backend/cuda/kv/kv.h"
#include "backend/cuda/kv/nibbles.h"
#include "backend/cuda/elementwise/norm_glu_embed.cuh"

namespace sx::cuda {
namespace {

std::string number(int n) { return std::to_string(n); }

void check_geometry(const KvGeometry& g) {
  for (const DType type : {g.type.keys, g.type.values})
    if (type != DType::kBF16 && type != DType::kF16 && type != DType::kQ8_0 && !is_nibbles(type))
      throw Error("KV type " + std::string(dtype_name(type)) + ": expected F16, BF16, Q8_0, Q4_0 or Q4_1");
  if (g.layers <= 0 || g.kv_heads <= 0 || g.slots <= 0 || g.capacity <= 0)
    throw Error("KV store of " + number(g.layers) + " layers, " + number(g.kv_heads) + " heads, " + number(g.slots) +
                " slots, " + number(g.capacity) + " cells: all must be positive");
  if (g.head_dim <= 0 || g.head_dim > 256 || g.head_dim % 2 != 0)
    throw Error("head size " + number(g.head_dim) + ": expected an even number up to 256");
  const bool blocks = g.type != DType::kBF16 && g.type != DType::kF16;  // of 32 elements, or two types
  if (blocks && g.head_dim % 32 != 0)
    throw Error("head size " + number(g.head_dim) + " with KV type " + kv_types_name(g.type) +
                ": expected a multiple of 32");
}

// Memory for one side: the words of all cells, and what lies apart from them.
size_t take_side(DType type, size_t cells, int dim, DeviceMemory& memory, std::byte*& words, uint16_t*& scales) {
  const size_t bytes = cells * size_t(side_words(type, dim)) * 4;
  const size_t apart = cells * size_t(side_scales(type, dim)) * sizeof(uint16_t);
  words = static_cast<std::byte*>(memory.take(bytes, "the KV store"));
  if (apart > 0) scales = static_cast<uint16_t*>(memory.take(apart, "the KV store"));
  return bytes + apart;
}

}  // namespace

CudaKv::CudaKv(const KvGeometry& g, DeviceMemory& memory) : KvStore(g) {
  check_geometry(g);
  geometry_.capacity = (g.capacity - 1) / kBlock * kBlock + kBlock;
  view_ = {g.type.keys, g.layers, g.slots, g.kv_heads, geometry_.capacity,
           g.head_dim,  nullptr,  nullptr, nullptr,    nullptr};
  view_.packed = !g.type.same() || is_nibbles(g.type.keys);
  view_.value_type = g.type.values;
  const size_t cells = size_t(g.layers) * view_.layer_cells();
  bytes_ = take_side(g.type.keys, cells, g.head_dim, memory, view_.k, view_.k_scale) +
           take_side(g.type.values, cells, g.head_dim, memory, view_.v, view_.v_scale);
  if (!view_.packed) return;
  // F16 keeps three more bits than BF16, which alone has the range of the latter.
  const bool bf16 = g.type.keys == DType::kBF16 || g.type.values == DType::kBF16;
  tile_ = {bf16 ? DType::kBF16 : DType::kF16,
           1,
           g.slots,
           g.kv_heads,
           geometry_.capacity,
           g.head_dim,
           nullptr,
           nullptr,
           nullptr,
           nullptr};
  tile_.value_type = tile_.type;
  uint16_t* none = nullptr;
  bytes_ += take_side(tile_.type, tile_.layer_cells(), g.head_dim, memory, tile_.k, none) +
            take_side(tile_.type, tile_.layer_cells(), g.head_dim, memory, tile_.v, none);
}

}  // namespace sx::cuda
