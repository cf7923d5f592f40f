// The element types of a KV cache: that of the keys and that of the values.
#pragma once
#include <string>
#include <string_view>

#include "tensor/dtype.h"

namespace sx {

struct KvTypes {
  DType keys = DType::kF32, values = DType::kF32;

  constexpr KvTypes() = default;
  constexpr KvTypes(DType both) : keys(both), values(both) {}  // NOLINT: most caches have one type
  constexpr KvTypes(DType k, DType v) : keys(k), values(v) {}
  constexpr bool same() const { return keys == values; }
  friend constexpr bool operator==(const KvTypes&, const KvTypes&) = default;
};

// "BF16", or "Q8_0/Q4_0" where keys and values differ.
std::string kv_types_name(const KvTypes& types);
// "q8_0", or "q8_0/q4_0": keys, then values; a part that is empty is `fastest`. `what` begins the message of the
// sx::Error that an unknown type throws.
KvTypes kv_types_from_name(std::string_view name, DType fastest, const char* what = "KV type");

}  // namespace sx
