// Element types of tensors, numbered by us (not by a file format), with their block geometry. Quantised types come in
// blocks: `block` elements share `bytes` bytes; rows are always whole blocks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace sx {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kMXFP4,
  kIQ4_NL,
  kIQ4_XS,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ2_S,
  kIQ3_XXS,
  kIQ3_S,
  kI8,
  kI16,
  kI32,
  kI64,
  kF64,
  kBool,
  kCount
};

struct DTypeInfo {
  const char* name;  // as GGUF tools print it: "F32", "Q4_1", ...
  int block;         // elements per block
  int bytes;         // bytes per block
};

const DTypeInfo& dtype_info(DType type);
inline const char* dtype_name(DType type) { return dtype_info(type).name; }
// Case-insensitive; accepts "q8_0", "f16", "bf16"...
std::optional<DType> dtype_from_name(std::string_view name);
bool dtype_is_quantised(DType type);
bool dtype_is_float(DType type);  // F32, F16, BF16
// Bytes of `count` elements; count must be a multiple of the block.
size_t dtype_bytes(DType type, int64_t count);

}  // namespace sx
