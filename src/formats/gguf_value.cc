// Typed values of GGUF metadata: conversions, printing, and the numbering of value and tensor types.
#include <cstring>
#include <limits>

#include "base/error.h"
#include "formats/gguf.h"
#include "base/printable.h"

namespace sx {
namespace {

template <class T>
T element(const GgufArray& array, size_t i) {
  T value;
  SX_ASSERT(i < array.count && (i + 1) * sizeof(T) <= array.raw.size());
  std::memcpy(&value, array.raw.data() + i * sizeof(T), sizeof(T));
  return value;
}

struct TensorTypeName {
  uint32_t number;
  const char* name;
};

// Types of the format that we do not read, so that an error can name them.
constexpr TensorTypeName kUnread[] = {
    {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {21, "IQ3_S"}, {22, "IQ2_S"}, {29, "IQ1_M"},   {34, "TQ1_0"},  {35, "TQ2_0"},
};

struct TensorTypeNumber {
  uint32_t number;
  DType type;
};

constexpr TensorTypeNumber kRead[] = {
    {0, DType::kF32},    {1, DType::kF16},   {2, DType::kQ4_0},    {3, DType::kQ4_1},    {6, DType::kQ5_0},
    {7, DType::kQ5_1},   {8, DType::kQ8_0},  {10, DType::kQ2_K},   {11, DType::kQ3_K},   {12, DType::kQ4_K},
    {13, DType::kQ5_K},  {14, DType::kQ6_K}, {20, DType::kIQ4_NL}, {23, DType::kIQ4_XS}, {24, DType::kI8},
    {25, DType::kI16},   {26, DType::kI32},  {27, DType::kI64},    {28, DType::kF64},    {30, DType::kBF16},
    {39, DType::kMXFP4},
};

std::string print_array(const GgufArray& array, size_t limit) {
  std::string out = fmt::format("{}[{}] {{", gguf_type_name(array.element), array.count);
  for (size_t i = 0; i < array.count; ++i) {
    if (out.size() > limit) {
      out += i ? ", ..." : "...";
      break;
    }
    if (i) out += ", ";
    if (array.element == GgufType::kString) {
      out += '"' + printable(array.strings[i], limit) + '"';
    } else if (array.element == GgufType::kArray) {
      out += array.arrays[i].print(limit / 2);
    } else if (gguf_is_float(array.element)) {
      out += fmt::format("{}", gguf_number(array, i));
    } else if (array.element == GgufType::kBool) {
      out += gguf_integer(array, i) ? "true" : "false";
    } else {
      out += fmt::format("{}", gguf_integer(array, i));
    }
  }
  return out + "}";
}

}  // namespace

const char* gguf_type_name(GgufType type) {
  constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                    "bool", "string", "array", "u64", "i64", "f64"};
  const auto at = static_cast<uint32_t>(type);
  return at < std::size(kNames) ? kNames[at] : "unknown";
}

bool gguf_is_float(GgufType type) { return type == GgufType::kF32 || type == GgufType::kF64; }

bool gguf_is_integer(GgufType type) {
  return !gguf_is_float(type) && type != GgufType::kBool && type != GgufType::kString && type != GgufType::kArray;
}

int64_t gguf_integer(const GgufArray& array, size_t i) {
  switch (array.element) {
    case GgufType::kU8:
    case GgufType::kBool: return element<uint8_t>(array, i);
    case GgufType::kI8: return element<int8_t>(array, i);
    case GgufType::kU16: return element<uint16_t>(array, i);
    case GgufType::kI16: return element<int16_t>(array, i);
    case GgufType::kU32: return element<uint32_t>(array, i);
    case GgufType::kI32: return element<int32_t>(array, i);
    case GgufType::kI64: return element<int64_t>(array, i);
    case GgufType::kU64: {
      constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
      return static_cast<int64_t>(std::min(element<uint64_t>(array, i), kMost));
    }
    default: SX_ASSERT(!"integer array");
  }
  return 0;
}

double gguf_number(const GgufArray& array, size_t i) {
  if (array.element == GgufType::kF32) return static_cast<double>(element<float>(array, i));
  if (array.element == GgufType::kF64) return element<double>(array, i);
  return static_cast<double>(gguf_integer(array, i));
}

std::optional<int64_t> GgufValue::as_int() const {
  if (!gguf_is_integer(type)) return std::nullopt;
  if (const auto* i = std::get_if<int64_t>(&value)) return *i;
  const auto* u = std::get_if<uint64_t>(&value);
  if (!u || *u > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(*u);
}

std::optional<double> GgufValue::as_double() const {
  if (const auto* d = std::get_if<double>(&value)) return *d;
  if (const auto i = as_int()) return static_cast<double>(*i);
  return std::nullopt;
}

std::optional<bool> GgufValue::as_bool() const {
  if (type != GgufType::kBool) return std::nullopt;
  return std::get<uint64_t>(value) != 0;
}

std::optional<std::string_view> GgufValue::as_string() const {
  if (const auto* s = std::get_if<std::string_view>(&value)) return *s;
  return std::nullopt;
}

const GgufArray* GgufValue::as_array() const { return std::get_if<GgufArray>(&value); }

std::string GgufValue::print(size_t limit) const {
  if (const auto* array = as_array()) return print_array(*array, limit);
  if (const auto text = as_string()) return printable(*text, limit);
  if (const auto flag = as_bool()) return *flag ? "true" : "false";
  if (const auto* d = std::get_if<double>(&value)) return fmt::format("{}", *d);
  if (const auto* i = std::get_if<int64_t>(&value)) return fmt::format("{}", *i);
  return fmt::format("{}", std::get<uint64_t>(value));
}

std::optional<DType> dtype_from_gguf(uint32_t type) {
  for (const auto& row : kRead) {
    if (row.number == type) return row.type;
  }
  return std::nullopt;
}

uint32_t dtype_to_gguf(DType type) {
  for (const auto& row : kRead) {
    if (row.type == type) return row.number;
  }
  SX_ASSERT(!"a type that GGUF has");
  return 0;
}

std::string gguf_tensor_type_name(uint32_t type) {
  if (const auto known = dtype_from_gguf(type)) return dtype_name(*known);
  for (const auto& row : kUnread) {
    if (row.number == type) return fmt::format("{} ({})", row.name, type);
  }
  return fmt::format("number {}", type);
}

}  // namespace sx
