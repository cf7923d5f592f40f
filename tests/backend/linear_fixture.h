// What tests of linear layers share: weights of any type, rows of activations, a runner that checks columns beyond the
// matrix, and the measure of batch invariance.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/linear/linear.h"
#include "tensor/blocks.h"
#include "tensor/half.h"

namespace sx::cpu {

inline constexpr DType kTypes[] = {DType::kF32,  DType::kF16,   DType::kBF16,   DType::kQ4_0,
                                   DType::kQ4_1, DType::kQ5_0,  DType::kQ5_1,   DType::kQ8_0,
                                   DType::kQ2_K, DType::kQ3_K,  DType::kQ4_K,   DType::kQ5_K,
                                   DType::kQ6_K, DType::kMXFP4, DType::kIQ4_NL, DType::kIQ4_XS};

// Cheap deterministic noise.
struct Noise {
  uint64_t state;
  explicit Noise(uint64_t seed) : state(seed * 0x9E3779B97F4A7C15ull + 1) {}
  uint64_t bits() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  }
  float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24f; }
  float normal() {
    float t = 0;
    for (int i = 0; i < 6; ++i) t += uniform();
    return (t - 3.0f) * 1.41421356f;
  }
};

// Random bytes in the given format, with scales replaced by sane ones; `tiny` makes scales that f16 cannot hold once
// multiplied by a sub-scale.
struct Weights {
  DType type;
  int out, in;
  std::vector<std::byte> bytes;
  std::vector<float> dense;  // [out, in]

  Tensor tensor() const { return {.type = type, .rank = 2, .shape = {out, in}, .data = bytes.data()}; }
};

inline void put_f16(std::byte* at, float value) {
  const uint16_t half = float_to_f16(value);
  std::memcpy(at, &half, 2);
}

inline void sane_scales(DType type, std::byte* block, Noise& noise, float size) {
  const float d = size * (0.5f + noise.uniform()), m = size * 4 * noise.normal();
  switch (type) {
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
    case DType::kIQ4_NL: put_f16(block, noise.bits() & 1 ? d : -d); break;
    case DType::kIQ4_XS: put_f16(block, d / 16); break;
    case DType::kMXFP4: *block = static_cast<std::byte>(126 + std::ilogb(size) + int(noise.bits() % 3)); break;
    case DType::kQ4_1:
    case DType::kQ5_1:
      put_f16(block, d);
      put_f16(block + 2, m);
      break;
    case DType::kQ4_K:
    case DType::kQ5_K:
      put_f16(block, d);
      put_f16(block + 2, 4 * d);
      break;
    case DType::kQ2_K:
      put_f16(block + 80, d);
      put_f16(block + 82, d);
      break;
    case DType::kQ3_K: put_f16(block + 108, d); break;
    case DType::kQ6_K: put_f16(block + 208, d); break;
    default: break;
  }
}

inline Weights make_weights(DType type, int out, int in, uint64_t seed, float size = 0.01f) {
  Noise noise(seed);
  Weights w{type, out, in, std::vector<std::byte>(dtype_bytes(type, int64_t{out} * in)),
            std::vector<float>(static_cast<size_t>(out) * static_cast<size_t>(in))};
  if (dtype_is_quantised(type)) {
    for (auto& b : w.bytes) b = static_cast<std::byte>(noise.bits() >> 32);
    const size_t step = static_cast<size_t>(dtype_info(type).bytes);
    for (size_t at = 0; at < w.bytes.size(); at += step) sane_scales(type, &w.bytes[at], noise, size);
  } else {
    std::vector<float> values(w.dense.size());
    for (auto& v : values) v = noise.normal() * size * 8;
    quantise(type, values.data(), static_cast<int64_t>(values.size()), w.bytes.data());
  }
  dequantise(type, w.bytes.data(), int64_t{out} * in, w.dense.data());
  return w;
}

inline std::vector<float> make_rows(int rows, int in, uint64_t seed) {
  Noise noise(seed);
  std::vector<float> x(static_cast<size_t>(rows) * static_cast<size_t>(in));
  for (auto& v : x) v = noise.normal() * (noise.bits() % 64 ? 1.0f : 12.0f);  // a few outliers, as in real models
  return x;
}

struct Runner {
  Isa isa;
  ThreadPool pool;
  LinearScratch scratch;
  Runner(Isa which, int threads, int rows = 600, int in = 2048) : isa(which), pool(threads), scratch(which) {
    scratch.reserve(rows, in, threads);
  }
  std::vector<float> run(const PackedMatrix& m, const std::vector<float>& x, int rows, const float* bias = nullptr,
                         const std::vector<float>* old = nullptr, int extra = 3) {
    const int stride = m.out() + extra;  // columns beyond the matrix must stay as they are
    std::vector<float> y(static_cast<size_t>(rows) * static_cast<size_t>(stride), -77.0f);
    if (old)
      for (int r = 0; r < rows; ++r)
        std::memcpy(&y[static_cast<size_t>(r * stride)], &(*old)[static_cast<size_t>(r * m.out())],
                    static_cast<size_t>(m.out()) * 4);
    linear({.out = y.data(),
            .x = x.data(),
            .weight = &m,
            .bias = bias,
            .rows = rows,
            .out_stride = stride,
            .accumulate = old != nullptr},
           m, pool, scratch);
    std::vector<float> tight;
    for (int r = 0; r < rows; ++r) {
      const float* row = &y[static_cast<size_t>(r * stride)];
      for (int i = m.out(); i < stride; ++i) EXPECT_EQ(row[i], -77.0f) << "wrote beyond the matrix";
      tight.insert(tight.end(), row, row + m.out());
    }
    return tight;
  }
};

// The measure of batch invariance: the number of rows of `many` whose bits differ from the same row of `alone`.
inline int different_rows(const std::vector<float>& many, const std::vector<float>& alone, int rows, int out,
                          int first = 0) {
  int bad = 0;
  for (int r = 0; r < rows; ++r)
    bad += std::memcmp(&many[static_cast<size_t>(r) * static_cast<size_t>(out)],
                       &alone[static_cast<size_t>(first + r) * static_cast<size_t>(out)],
                       static_cast<size_t>(out) * 4) != 0;
  return bad;
}

inline std::vector<float> slice(const std::vector<float>& x, int first, int rows, int in) {
  return {x.begin() + int64_t{first} * in, x.begin() + int64_t{first + rows} * in};
}

inline std::vector<float> each_alone(Runner& runner, const PackedMatrix& m, const std::vector<float>& x, int rows,
                                     const float* bias = nullptr) {
  std::vector<float> all;
  for (int r = 0; r < rows; ++r) {
    const auto y = runner.run(m, slice(x, r, 1, m.in()), 1, bias);
    all.insert(all.end(), y.begin(), y.end());
  }
  return all;
}

inline std::string label(Isa isa, DType type) { return std::string(isa_name(isa)) + " " + dtype_name(type); }

inline int any_in(DType type, int wanted) {  // nearest multiple of the type's block, not 0
  const int block = dtype_info(type).block;
  return std::max(1, wanted / block) * block;
}

}  // namespace sx::cpu
