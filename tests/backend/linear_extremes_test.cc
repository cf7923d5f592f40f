// The largest integers that dot products of quantised weights and activations can make: weights at the ends of their
// range, activations at +-127, scales of 1. Every sum is an integer below 2^24, so the result is exact, and an
// instruction set that saturates or wraps on the way is found out by ==.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/linear/linear.h"
#include "tensor/blocks.h"
#include "tensor/half.h"

namespace sx::cpu {
namespace {

constexpr int kIn = 256, kRows = 7, kMostRows = 21;                 // rows beyond the first repeat them
constexpr uint8_t kFills[] = {0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0};  // one byte that fills all quants of an output
constexpr int kOut = 20;                                            // outputs beyond the fills mix two of them

struct Kind {
  DType type;
  int quants_at;  // bytes of scale and offset before the quants
};

std::byte fill_of(int o, int i, int b) { return std::byte{kFills[o < 6 ? o : (i % 3 ? o : o / 6 + b) % 6]}; }

std::vector<std::byte> extreme_weights(const Kind& kind) {
  std::vector<std::byte> bytes(dtype_bytes(kind.type, int64_t{kOut} * kIn), std::byte{0});
  const int size = dtype_info(kind.type).bytes;
  const uint16_t one = float_to_f16(1.0f);
  if (kind.type == DType::kQ6_K) {  // quants first, then scales of one byte, then one for all of them
    static_assert(sizeof(BlockQ6_K) == 210 && kIn == 256);
    for (int o = 0; o < kOut; ++o) {
      std::byte* block = &bytes[static_cast<size_t>(o * size)];
      for (int i = 0; i < 192; ++i) block[i] = fill_of(o, i, 0);
      std::fill(block + 192, block + 208, std::byte{1});
      std::memcpy(block + 208, &one, 2);
    }
    return bytes;
  }
  for (int o = 0; o < kOut; ++o)
    for (int b = 0; b < kIn / 32; ++b) {
      std::byte* block = &bytes[static_cast<size_t>((o * kIn / 32 + b) * size)];
      std::memcpy(block, &one, 2);
      for (int i = kind.quants_at; i < size; ++i) block[i] = fill_of(o, i, b);
    }
  return bytes;
}

std::vector<float> extreme_rows(const std::vector<float>& dense) {
  std::vector<float> x(kMostRows * kIn);
  for (int i = 0; i < kIn; ++i) {
    const float value[kRows] = {
        127,
        -127,
        i % 2 ? 127.0f : -127.0f,
        i % 4 < 2 ? 127.0f : -127.0f,
        i % 32 ? 0.0f : 127.0f,
        dense[size_t(7 * kIn + i)] < 0 ? -127.0f : 127.0f,  // all terms of output 7 or 13 positive
        dense[size_t(13 * kIn + i)] < 0 ? -127.0f : 127.0f};
    for (int r = 0; r < kMostRows; ++r) x[size_t(r * kIn + i)] = value[r % kRows];
  }
  return x;
}

TEST(LinearExtremes, LargestProductsAreExact) {
  const Kind kinds[] = {{DType::kQ4_0, 2}, {DType::kQ4_1, 4}, {DType::kQ5_0, 2},
                        {DType::kQ5_1, 4}, {DType::kQ8_0, 2}, {DType::kQ6_K, 0}};
  for (Isa isa : available_isas())
    for (const Kind& kind : kinds) {
      const auto bytes = extreme_weights(kind);
      std::vector<float> dense(size_t(kOut) * kIn);
      dequantise(kind.type, bytes.data(), int64_t{kOut} * kIn, dense.data());
      const auto x = extreme_rows(dense);
      ThreadPool pool(1);
      LinearScratch scratch(isa);
      scratch.reserve(kMostRows, kIn, 1);
      const Tensor tensor{.type = kind.type, .rank = 2, .shape = {kOut, kIn}, .data = bytes.data()};
      const auto matrix = pack_matrix({&tensor, 1}, isa, pool);
      for (int rows : {1, kRows, kMostRows}) {
        std::vector<float> y(size_t(rows * kOut));
        linear({.out = y.data(),
                .x = x.data(),
                .weight = matrix.get(),
                .bias = nullptr,
                .rows = rows,
                .out_stride = kOut,
                .accumulate = false},
               *matrix, pool, scratch);
        for (int r = 0; r < rows; ++r)
          for (int o = 0; o < kOut; ++o) {
            double want = 0;
            for (int i = 0; i < kIn; ++i) want += double(dense[size_t(o * kIn + i)]) * double(x[size_t(r * kIn + i)]);
            EXPECT_EQ(double(y[size_t(r * kOut + o)]), want)
                << isa_name(isa) << " " << dtype_name(kind.type) << " row " << r << " of " << rows << " output " << o;
          }
      }
    }
}

}  // namespace
}  // namespace sx::cpu
