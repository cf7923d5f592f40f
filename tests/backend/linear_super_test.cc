// Linear layers whose activations have one scale per 64 inner values (super-blocks): the documented order of
// operations, reproduced outside the kernels, and batch invariance at every row count. Sets without such layouts have
// nothing to test here.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "linear_fixture.h"

namespace sx::cpu {
namespace {

constexpr DType kSuperTypes[] = {DType::kQ4_0, DType::kQ4_1, DType::kQ4_K, DType::kQ5_0, DType::kQ5_1,
                                 DType::kQ5_K, DType::kQ3_K, DType::kQ6_K, DType::kQ8_0};

float through_f16(float x) { return f16_to_float(float_to_f16(x)); }

// Eleven bits of x: what f16 keeps of a number that was shifted into its range.
float eleven_bits(float x) {
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);
  return std::ldexp(through_f16(fraction), exponent);
}

// What of a type the order depends on: the factor that fills a byte, and the quant that is stored as 0.
struct Stored {
  int factor, centre;
};
Stored stored_i8mm(DType type) {
  switch (type) {
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ4_K: return {16, 8};
    case DType::kQ5_0: return {8, 0};
    case DType::kQ5_1:
    case DType::kQ5_K: return {8, 16};
    case DType::kQ3_K: return {32, 0};
    case DType::kQ6_K: return {4, 0};
    default: return {1, 0};  // Q8_0
  }
}
bool has_offset(DType type) { return type != DType::kQ4_0 && affine_traits(type).has_offset; }

// One output of one row on i8mm, as backend/cpu/linear/README.md has it; `size` activations share a scale.
float in_order_of_i8mm(DType type, const std::byte* weights, const float* x, int in, int size) {
  constexpr float kMagic = 12582912;
  const int sub = affine_traits(type).sub;
  const auto [factor, centre] = stored_i8mm(type);
  std::vector<int8_t> q(static_cast<size_t>(in));
  std::vector<float> scale(static_cast<size_t>(in / sub)), offset(scale);
  unpack_affine(type, weights, in, q.data(), scale.data(), offset.data());
  float acc = 0;
  uint32_t sum = 0;
  for (int from = 0; from < in; from += size) {
    const int to = std::min(in, from + size);
    float top = 0;
    for (int i = from; i < to; ++i) top = std::max(top, std::fabs(x[i]));
    auto d = [&](int b) { return sub * b < to ? eleven_bits(scale[static_cast<size_t>(b)]) : 0.0f; };
    if (from % 256 == 0) sum = std::bit_cast<uint32_t>(kMagic);
    float p = std::bit_cast<float>(sum) * d(from / sub);
    int total = 0;
    for (int b = from / sub; sub * b < to; ++b) {
      int dot = 0;
      for (int i = sub * b; i < sub * (b + 1); ++i) {
        const int v = static_cast<int>(std::nearbyint(x[i] * (127 / top)));
        dot += factor * (q[static_cast<size_t>(i)] - centre) * v;
        total += 16 * v;
      }
      sum += static_cast<uint32_t>(dot);
      p = std::fma(-std::bit_cast<float>(sum), d(b) - d(b + 1), p);
      const size_t at = static_cast<size_t>(b);
      if (!has_offset(type)) continue;
      const float m = eleven_bits(offset[at] + static_cast<float>(centre) * scale[at]);
      p = std::fma(-m * (static_cast<float>(factor) / 16), through_f16(static_cast<float>(total)), p);
      total = 0;
    }
    acc = std::fma(-p, top / 127 * 0.0625f, acc);
  }
  return acc * (16.0f / static_cast<float>(factor));
}

// The same for x86. Powers of two that weights are stored with change no bit.
float in_order_of_x86(DType type, const std::byte* weights, const float* x, int in, int size) {
  const int sub = affine_traits(type).sub;
  const int centre = type == DType::kQ4_1 || type == DType::kQ4_K ? 0 : stored_i8mm(type).centre;
  std::vector<int8_t> q(static_cast<size_t>(in));
  std::vector<float> scale(static_cast<size_t>(in / sub)), offset(scale);
  unpack_affine(type, weights, in, q.data(), scale.data(), offset.data());
  float acc = 0;
  for (int from = 0; from < in; from += size) {
    const int to = std::min(in, from + size);
    float top = 0, p = 0;
    for (int i = from; i < to; ++i) top = std::max(top, std::fabs(x[i]));
    for (int b = from / sub; sub * b < to; ++b) {
      int dot = 0, total = 0;
      for (int i = sub * b; i < sub * (b + 1); ++i) {
        const int v = static_cast<int>(std::nearbyint(x[i] * (127 / top)));
        dot += (q[static_cast<size_t>(i)] - centre) * v;
        total += v;
      }
      const size_t at = static_cast<size_t>(b);
      p = std::fma(static_cast<float>(dot), eleven_bits(scale[at]), p);
      const float m = eleven_bits(offset[at] + static_cast<float>(centre) * scale[at]);
      if (has_offset(type)) p = std::fma(m, static_cast<float>(total), p);
    }
    acc = std::fma(p, top / 127, acc);
  }
  return acc;
}

TEST(LinearSuper, TheDocumentedOrderIsReproduced) {
  for (Isa isa : available_isas())
    for (DType type : kSuperTypes)
      for (int wanted : {32, 224, 256, 288, 576, 1536, 2048 + 96}) {
        const int out = 11, in = any_in(type, wanted), rows = 35;
        const Weights w = make_weights(type, out, in, 11);
        Runner runner(isa, 2, rows, in);
        const Tensor tensor = w.tensor();
        const auto m = pack_matrix({&tensor, 1}, isa, runner.pool);
        if (m->parts()[0].layout.act_block == 32) continue;
        const auto x = make_rows(rows, in, 12), y = runner.run(*m, x, rows);
        const auto documented = isa == Isa::kNeonI8mm ? in_order_of_i8mm : in_order_of_x86;
        for (int r = 0; r < rows; ++r)
          for (int o = 0; o < out; ++o)
            ASSERT_EQ(std::bit_cast<uint32_t>(y[static_cast<size_t>(r * out + o)]),
                      std::bit_cast<uint32_t>(documented(type, tensor.row(o), &x[static_cast<size_t>(r * in)], in,
                                                         m->parts()[0].layout.act_block)))
                << label(isa, type) << " " << in << " row " << r << " output " << o;
      }
}

TEST(LinearSuper, EveryRowCountUpTo200GivesTheSameBits) {
  for (Isa isa : available_isas())
    for (DType type : kSuperTypes) {
      const int out = 83, in = any_in(type, 1376), most = 200;  // one chunk of 1,024 and a short super-block
      const Weights w = make_weights(type, out, in, 21);
      Runner one(isa, 1, most, in), three(isa, 3, most, in);
      const Tensor tensor = w.tensor();
      const auto m = pack_matrix({&tensor, 1}, isa, one.pool);
      if (m->parts()[0].layout.act_block == 32) continue;
      const auto x = make_rows(most, in, 22), alone = each_alone(one, *m, x, most);
      for (int rows = 1; rows <= most; ++rows) {
        const int first = (most - rows) / 2;
        const auto y = (rows % 2 ? one : three).run(*m, slice(x, first, rows, in), rows);
        ASSERT_EQ(different_rows(y, alone, rows, out, first), 0) << label(isa, type) << " rows " << rows;
      }
    }
}

// Scales of K types are too small for f16 in many files, or differ by more than it can hold, which is rare.
TEST(LinearSuper, ScalesBeyondF16AreShiftedOrFallBack) {
  for (DType type : {DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K})
    for (bool apart : {false, true}) {
      const int out = 20, in = 512;
      Weights w = make_weights(type, out, in, 41, 3e-6f);
      if (apart) {  // the last row is huge
        const Weights huge = make_weights(type, 1, in, 42, 1000.0f);
        std::copy(huge.bytes.begin(), huge.bytes.end(), w.bytes.end() - static_cast<int64_t>(huge.bytes.size()));
      }
      for (Isa isa : available_isas()) {
        Runner runner(isa, 2);
        const Tensor tensor = w.tensor();
        const auto m = pack_matrix({&tensor, 1}, isa, runner.pool);
        const auto& layout = m->parts()[0].layout;
        const bool supers = isa != Isa::kGeneric && isa != Isa::kNeonDot;
        const bool nibbles = type == DType::kQ4_K && isa != Isa::kNeonI8mm;  // f32 scales there, still a scale per 64
        if (supers && !nibbles) { EXPECT_EQ(layout.act_block, apart ? 32 : 64) << label(isa, type); }
        const auto x = make_rows(5, in, 32), y = runner.run(*m, x, 5);
        EXPECT_EQ(different_rows(y, each_alone(runner, *m, x, 5), 5, out), 0) << label(isa, type);
        if (!supers || apart) continue;
        const auto documented = isa == Isa::kNeonI8mm ? in_order_of_i8mm : in_order_of_x86;
        for (int o = 0; o < out; ++o)
          EXPECT_EQ(y[static_cast<size_t>(o)], documented(type, tensor.row(o), x.data(), in, layout.act_block));
      }
    }
}

// Offsets that f16 cannot hold once nibbles count from 8 keep a scale per 32 activations on i8mm; other sets count from
// 0.
TEST(LinearSuper, OffsetsBeyondF16FallBack) {
  Weights w = make_weights(DType::kQ4_1, 9, 64, 31);
  put_f16(w.bytes.data(), 30000.0f);  // + 8 * 30,000 is infinite as f16
  dequantise(w.type, w.bytes.data(), int64_t{9} * 64, w.dense.data());
  for (Isa isa : available_isas()) {
    Runner runner(isa, 1);
    const Tensor tensor = w.tensor();
    const auto m = pack_matrix({&tensor, 1}, isa, runner.pool);
    if (isa == Isa::kNeonI8mm) { EXPECT_EQ(m->parts()[0].layout.act_block, 32); }
    const auto x = make_rows(5, 64, 32), y = runner.run(*m, x, 5);
    EXPECT_EQ(different_rows(y, each_alone(runner, *m, x, 5), 5, 9), 0) << isa_name(isa);
    for (float value : y) EXPECT_TRUE(std::isfinite(value)) << isa_name(isa);
  }
}

}  // namespace
}  // namespace sx::cpu
