// The table of element types: names and block geometry.
#include "tensor/dtype.h"

#include <array>
#include <cctype>

#include "base/error.h"
#include "tensor/blocks.h"

namespace sx {
namespace {

constexpr std::array<DTypeInfo, static_cast<size_t>(DType::kCount)> kTable = {{
    {"F32", 1, 4},
    {"F16", 1, 2},
    {"BF16", 1, 2},
    {"Q4_0", 32, sizeof(BlockQ4_0)},
    {"Q4_1", 32, sizeof(BlockQ4_1)},
    {"Q5_0", 32, sizeof(BlockQ5_0)},
    {"Q5_1", 32, sizeof(BlockQ5_1)},
    {"Q8_0", 32, sizeof(BlockQ8_0)},
    {"Q2_K", 256, sizeof(BlockQ2_K)},
    {"Q3_K", 256, sizeof(BlockQ3_K)},
    {"Q4_K", 256, sizeof(BlockQ4_K)},
    {"Q5_K", 256, sizeof(BlockQ5_K)},
    {"Q6_K", 256, sizeof(BlockQ6_K)},
    {"MXFP4", 32, sizeof(BlockMXFP4)},
    {"IQ4_NL", 32, sizeof(BlockIQ4_NL)},
    {"IQ4_XS", 256, sizeof(BlockIQ4_XS)},
    {"IQ2_XXS", 256, sizeof(BlockIQ2_XXS)},
    {"IQ2_XS", 256, sizeof(BlockIQ2_XS)},
    {"IQ2_S", 256, sizeof(BlockIQ2_S)},
    {"IQ3_XXS", 256, sizeof(BlockIQ3_XXS)},
    {"IQ3_S", 256, sizeof(BlockIQ3_S)},
    {"I8", 1, 1},
    {"I16", 1, 2},
    {"I32", 1, 4},
    {"I64", 1, 8},
    {"F64", 1, 8},
    {"BOOL", 1, 1},
}};

bool same_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::tolower(static_cast<unsigned char>(a[i])) != std::tolower(static_cast<unsigned char>(b[i]))) return false;
  }
  return true;
}

}  // namespace

const DTypeInfo& dtype_info(DType type) {
  SX_ASSERT(type < DType::kCount);
  return kTable[static_cast<size_t>(type)];
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (same_ignoring_case(name, kTable[i].name)) return static_cast<DType>(i);
  }
  return std::nullopt;
}

bool dtype_is_quantised(DType type) { return dtype_info(type).block > 1; }

bool dtype_is_float(DType type) { return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16; }

size_t dtype_bytes(DType type, int64_t count) {
  const DTypeInfo& info = dtype_info(type);
  SX_ASSERT(count >= 0 && count % info.block == 0);
  return static_cast<size_t>(count / info.block) * static_cast<size_t>(info.bytes);
}

}  // namespace sx
