#include "backend/cpu/kv/layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/kv/records.h"
#include "base/error.h"
#include "tensor/half.h"

namespace sx::cpu {
namespace {

// Runs of consecutive elements of one position. Element e of position p lies at
//   (e / run) * step + start(p) + (e % run) * gap     (in elements)
// with one (run, step, gap) per layout; the V blocks of the matrix family have run 16.
struct Walk {
  size_t start, step;
  int run;
  size_t gap;
};

Walk key_walk(const KvLayout& l, int p) {
  const auto pos = static_cast<size_t>(p), padded = static_cast<size_t>(l.padded);
  const size_t base = pos / 16 * 16 * padded;
  if (!l.matrix) return {base + pos % 16, 16, 1, 1};
  const size_t run = l.type == DType::kQ8_0 ? 8 : 4;
  return {base + pos % 16 * run, 16 * run, static_cast<int>(run), 1};
}

Walk value_walk(const KvLayout& l, int p) {
  const auto pos = static_cast<size_t>(p), padded = static_cast<size_t>(l.padded);
  if (!l.matrix) return {pos * padded, 16, 16, 1};
  const size_t group = l.type == DType::kQ8_0 ? 8 : 4;
  return {pos / group * 16 * group + pos % group, 16 * kBlock, 16, group};
}

template <class T, class Convert>
void put(const Walk& w, void* block, int dim, const float* x, Convert convert) {
  T* at = static_cast<T*>(block) + w.start;
  for (int e = 0; e < dim; e += w.run, at += w.step) {
    const int n = std::min(w.run, dim - e);
    for (int i = 0; i < n; ++i) at[static_cast<size_t>(i) * w.gap] = convert(x[e + i]);
  }
}

template <class T, class Convert>
void get(const Walk& w, const void* block, int dim, float* x, Convert convert) {
  const T* at = static_cast<const T*>(block) + w.start;
  for (int e = 0; e < dim; e += w.run, at += w.step) {
    const int n = std::min(w.run, dim - e);
    for (int i = 0; i < n; ++i) x[e + i] = convert(at[static_cast<size_t>(i) * w.gap]);
  }
}

template <class T>
void copy(const Walk& from, const void* source, const Walk& to, void* target, int dim) {
  const T* a = static_cast<const T*>(source) + from.start;
  T* b = static_cast<T*>(target) + to.start;
  for (int e = 0; e < dim; e += from.run, a += from.step, b += to.step) {
    const int n = std::min(from.run, dim - e);
    for (int i = 0; i < n; ++i) b[static_cast<size_t>(i) * to.gap] = a[static_cast<size_t>(i) * from.gap];
  }
}

float* scales(const KvLayout& l, std::byte* block) { return reinterpret_cast<float*>(block + l.scales_at()); }
const float* scales(const KvLayout& l, const std::byte* block) {
  return reinterpret_cast<const float*>(block + l.scales_at());
}

// Where position p of a block with records lies.
std::byte* record(const KvLayout& l, std::byte* block, int p) { return block + static_cast<size_t>(p) * l.record; }
const std::byte* record(const KvLayout& l, const std::byte* block, int p) {
  return block + static_cast<size_t>(p) * l.record;
}

void store(const KvLayout& l, const Walk& w, std::byte* block, int p, const float* x) {
  if (l.record) return write_record(l, record(l, block, p), x);
  switch (l.type) {
    case DType::kBF16: return put<uint16_t>(w, block, l.dim, x, [](float y) { return float_to_bf16(y); });
    case DType::kF16:
      return put<uint16_t>(w, block, l.dim, x,
                           [](float y) { return float_to_f16(std::clamp(y, -65504.0f, 65504.0f)); });
    case DType::kQ8_0: {
      float top = 0;
      for (int i = 0; i < l.dim; ++i) top = std::max(top, std::fabs(x[i]));
      const float inverse = top > 0 ? 127 / top : 0;
      scales(l, block)[p] = top / 127;
      return put<int8_t>(w, block, l.dim, x, [&](float y) { return static_cast<int8_t>(std::lrintf(y * inverse)); });
    }
    default: return put<float>(w, block, l.dim, x, [](float y) { return y; });
  }
}

void load(const KvLayout& l, const Walk& w, const std::byte* block, int p, float* x) {
  if (l.record) return read_record(l, record(l, block, p), x);
  switch (l.type) {
    case DType::kBF16: return get<uint16_t>(w, block, l.dim, x, [](uint16_t y) { return bf16_to_float(y); });
    case DType::kF16: return get<uint16_t>(w, block, l.dim, x, [](uint16_t y) { return f16_to_float(y); });
    case DType::kQ8_0: {
      const float scale = scales(l, block)[p];
      return get<int8_t>(w, block, l.dim, x, [&](int8_t y) { return scale * static_cast<float>(y); });
    }
    default: return get<float>(w, block, l.dim, x, [](float y) { return y; });
  }
}

void copy_any(const KvLayout& l, const Walk& a, const std::byte* from, int p, const Walk& b, std::byte* to, int q) {
  if (l.record) return void(std::memmove(record(l, to, q), record(l, from, p), l.record));
  switch (l.type) {
    case DType::kBF16:
    case DType::kF16: return copy<uint16_t>(a, from, b, to, l.dim);
    case DType::kQ8_0: scales(l, to)[q] = scales(l, from)[p]; return copy<int8_t>(a, from, b, to, l.dim);
    default: return copy<float>(a, from, b, to, l.dim);
  }
}

// Elements of a position between a block and packed bytes, whichever `one` copies from: one(element, packed).
template <class Element, class Packed, class One>
void each_packed(const Walk& w, Element* at, int dim, Packed* packed, One one) {
  at += w.start;
  for (int e = 0; e < dim; e += w.run, at += w.step) {
    const int n = std::min(w.run, dim - e);
    for (int i = 0; i < n; ++i, packed += sizeof(Element)) one(at + static_cast<size_t>(i) * w.gap, packed);
  }
}

template <class T>
void pack(const KvLayout& l, const Walk& w, const std::byte* block, std::byte* packed) {
  each_packed(w, reinterpret_cast<const T*>(block), l.dim, packed,
              [](const T* x, std::byte* y) { std::memcpy(y, x, sizeof(T)); });
}
template <class T>
void unpack(const KvLayout& l, const Walk& w, std::byte* block, const std::byte* packed) {
  each_packed(w, reinterpret_cast<T*>(block), l.dim, packed,
              [](T* x, const std::byte* y) { std::memcpy(x, y, sizeof(T)); });
}

void pack_any(const KvLayout& l, const Walk& w, const std::byte* block, int p, std::byte* packed) {
  if (l.record) return void(std::memcpy(packed, record(l, block, p), l.record));
  switch (l.type) {
    case DType::kBF16:
    case DType::kF16: return pack<uint16_t>(l, w, block, packed);
    case DType::kQ8_0:
      std::memcpy(packed, scales(l, block) + p, sizeof(float));
      return pack<int8_t>(l, w, block, packed + sizeof(float));
    default: return pack<float>(l, w, block, packed);
  }
}

void unpack_any(const KvLayout& l, const Walk& w, std::byte* block, int p, const std::byte* packed) {
  if (l.record) return void(std::memcpy(record(l, block, p), packed, l.record));
  switch (l.type) {
    case DType::kBF16:
    case DType::kF16: return unpack<uint16_t>(l, w, block, packed);
    case DType::kQ8_0:
      std::memcpy(scales(l, block) + p, packed, sizeof(float));
      return unpack<int8_t>(l, w, block, packed + sizeof(float));
    default: return unpack<float>(l, w, block, packed);
  }
}

}  // namespace

KvLayout make_layout(DType type, DType other, int head_dim, Isa isa) {
  const bool records = tile_type(type) != type;
  if (!records && type != DType::kF32 && type != DType::kF16 && type != DType::kBF16 && type != DType::kQ8_0)
    fail("KV type {}: expected F32, F16, BF16, Q8_0, Q4_0 or Q4_1", dtype_name(type));
  if (head_dim <= 0 || head_dim > kMaxHeadDim || head_dim % 2 != 0)
    fail("head size {}: expected an even number up to {}", head_dim, kMaxHeadDim);
  KvLayout l;
  l.type = type;
  l.matrix =
      isa == Isa::kNeonI8mm && tile_type(type) == tile_type(other) && (type == DType::kBF16 || type == DType::kQ8_0);
  l.dim = head_dim;
  l.padded = (head_dim + 15) / 16 * 16;
  if (records) {
    l.record = record_bytes(type, head_dim);
    l.bytes = kBlock * l.record;
    return l;
  }
  const size_t count = size_t(kBlock) * static_cast<size_t>(l.padded);
  const size_t element = type == DType::kF32 ? 4 : type == DType::kQ8_0 ? 1 : 2;
  l.bytes = count * element + (type == DType::kQ8_0 ? kBlock * sizeof(float) : 0);
  return l;
}

void store_key(const KvLayout& l, std::byte* block, int p, const float* k) { store(l, key_walk(l, p), block, p, k); }

void store_value(const KvLayout& l, std::byte* block, int p, const float* v) {
  constexpr float kTop = 3.3e38f;  // finite as bf16 too
  float finite[kMaxHeadDim];
  for (int i = 0; i < l.dim; ++i) finite[i] = v[i] != v[i] ? 0.0f : std::clamp(v[i], -kTop, kTop);
  store(l, value_walk(l, p), block, p, finite);
}

void load_key(const KvLayout& l, const std::byte* block, int p, float* k) { load(l, key_walk(l, p), block, p, k); }
void load_value(const KvLayout& l, const std::byte* block, int p, float* v) { load(l, value_walk(l, p), block, p, v); }

void copy_key(const KvLayout& l, const std::byte* from, int p, std::byte* to, int q) {
  copy_any(l, key_walk(l, p), from, p, key_walk(l, q), to, q);
}
void copy_value(const KvLayout& l, const std::byte* from, int p, std::byte* to, int q) {
  copy_any(l, value_walk(l, p), from, p, value_walk(l, q), to, q);
}

size_t packed_bytes(const KvLayout& l) {
  const size_t dim = static_cast<size_t>(l.dim);
  if (l.record) return l.record;
  return l.type == DType::kQ8_0 ? sizeof(float) + dim : dim * (l.type == DType::kF32 ? 4 : 2);
}

void pack_key(const KvLayout& l, const std::byte* block, int p, std::byte* packed) {
  pack_any(l, key_walk(l, p), block, p, packed);
}
void pack_value(const KvLayout& l, const std::byte* block, int p, std::byte* packed) {
  pack_any(l, value_walk(l, p), block, p, packed);
}
void unpack_key(const KvLayout& l, std::byte* block, int p, const std::byte* packed) {
  unpack_any(l, key_walk(l, p), block, p, packed);
}
void unpack_value(const KvLayout& l, std::byte* block, int p, const std::byte* packed) {
  unpack_any(l, value_walk(l, p), block, p, packed);
}

}  // namespace sx::cpu
