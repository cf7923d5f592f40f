#include "kv/types.h"

#include "base/error.h"

namespace sx {
namespace {

DType one_type(std::string_view name, DType fastest, const char* what) {
  if (name.empty()) return fastest;
  const auto type = dtype_from_name(name);
  for (const DType known : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1})
    if (type == known) return known;
  fail("{} '{}' is not known: use f32, f16, bf16, q8_0, q4_0 or q4_1, or two of them for keys and values ('q8_0/q4_0')",
       what, name);
}

}  // namespace

std::string kv_types_name(const KvTypes& types) {
  std::string name = dtype_name(types.keys);
  if (!types.same()) name += std::string("/") + dtype_name(types.values);
  return name;
}

KvTypes kv_types_from_name(std::string_view name, DType fastest, const char* what) {
  const size_t slash = name.find('/');
  if (slash == name.npos) return one_type(name, fastest, what);
  return {one_type(name.substr(0, slash), fastest, what), one_type(name.substr(slash + 1), fastest, what)};
}

}  // namespace sx
