// CudaKv: device memory for the cells of a store, and the checks of its geometry.
#include <specextend/error.h>

#include <string>

#include "backend/cuda/kv/kv.h"
#include "backend/cuda/elementwise/norm_glu_embed.cuh"

namespace sx::cuda {

CudaKv::CudaKv(const KvGeometry& g, DeviceMemory& memory) : KvStore(g) {
  const auto number = [](int n) { return std::to_string(n); };
  if (g.type != DType::kBF16 && g.type != DType::kF16 && g.type != DType::kQ8_0)
    throw Error("KV type " + std::string(dtype_name(g.type)) + ": expected F16, BF16 or Q8_0");
  if (g.layers <= 0 || g.kv_heads <= 0 || g.slots <= 0 || g.capacity <= 0)
    throw Error("KV store of " + number(g.layers) + " layers, " + number(g.kv_heads) + " heads, " + number(g.slots) +
                " slots, " + number(g.capacity) + " cells: all must be positive");
  if (g.head_dim <= 0 || g.head_dim > 256 || g.head_dim % 2 != 0)
    throw Error("head size " + number(g.head_dim) + ": expected an even number up to 256");
  if (g.type == DType::kQ8_0 && g.head_dim % 32 != 0)
    throw Error("head size " + number(g.head_dim) + " with KV type Q8_0: expected a multiple of 32");
  geometry_.capacity = (g.capacity - 1) / kBlock * kBlock + kBlock;
  view_ = {g.type, g.layers, g.slots, g.kv_heads, geometry_.capacity, g.head_dim, nullptr, nullptr, nullptr, nullptr};
  const size_t cells = size_t(g.layers) * view_.layer_cells(), half = cells * cell_bytes(view_);
  const size_t scales = g.type == DType::kQ8_0 ? cells * size_t(g.head_dim / 32) * sizeof(uint16_t) : 0;
  view_.k = static_cast<std::byte*>(memory.take(half, "the KV store"));
  view_.v = static_cast<std::byte*>(memory.take(half, "the KV store"));
  if (scales > 0) {
    view_.k_scale = static_cast<uint16_t*>(memory.take(scales, "the KV store"));
    view_.v_scale = static_cast<uint16_t*>(memory.take(scales, "the KV store"));
  }
  bytes_ = 2 * (half + scales);
}

}  // namespace sx::cuda
