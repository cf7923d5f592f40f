// What the CUDA backend does with cells of 4 bits, on the host: its header of arithmetic and places is compiled here,
// and the work of a warp (store_side, widen_to and PackedCell of kv/packed.cuh) is done lane by lane. Codes, scales and
// values are those of tensor/quantise.cc and of the CPU backend's records, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "attention_fixture.h"
#include "backend/cuda/kv/nibbles.h"
#include "tensor/blocks.h"
#include "tensor/half.h"

namespace sx::cuda {
namespace {

constexpr DType kTypes[] = {DType::kQ4_0, DType::kQ4_1};

struct Head {
  std::vector<uint32_t> words;
  std::vector<uint16_t> scales;
};

// As store_side() does it with 32 lanes.
Head store(DType type, const std::vector<float>& x) {
  const int dim = static_cast<int>(x.size());
  Head head{std::vector<uint32_t>(static_cast<size_t>(side_words(type, dim))),
            std::vector<uint16_t>(static_cast<size_t>(side_scales(type, dim)))};
  for (int block = 0; block < dim / 32; ++block) {
    float v[32], most = 0, low = INFINITY, high = -INFINITY;
    for (int lane = 0; lane < 32; ++lane) {
      v[lane] = std::clamp(x[static_cast<size_t>(32 * block + lane)], -65504.0f, 65504.0f);
      most = std::max(most, std::fabs(v[lane])), low = std::min(low, v[lane]), high = std::max(high, v[lane]);
    }
    int who = 0;
    while (std::fabs(v[who]) != most) ++who;
    const NibbleScale s = type == DType::kQ4_0 ? nibble_scale_q4_0(v[who]) : nibble_scale_q4_1(low, high);
    for (int lane = 0; lane < 32; ++lane)
      head.words[static_cast<size_t>(4 * block + lane / 8)] |= nibble_code(type, v[lane], s) << (4 * (lane % 8));
    const size_t at = static_cast<size_t>(scale_of_word(type, 4 * block));
    head.scales[at] = float_to_f16(s.scale);
    if (type == DType::kQ4_1) head.scales[at + 1] = float_to_f16(s.least);
  }
  return head;
}

std::vector<float> widen(DType type, const Head& head, int dim) {
  std::vector<float> x(static_cast<size_t>(dim));
  for (int w = 0; w < side_words(type, dim); ++w) {
    const size_t at = static_cast<size_t>(scale_of_word(type, w));
    const float scale = head.scales.empty() ? 0 : f16_to_float(head.scales[at]);
    const float least = type == DType::kQ4_1 ? f16_to_float(head.scales[at + 1]) : 0;
    float out[8];
    widen_word(type, head.words[static_cast<size_t>(w)], scale, least, out);
    std::copy_n(out, per_word(type), x.data() + w * per_word(type));
  }
  return x;
}

// Heads of every kind: ordinary ones, zeros, ties of the largest magnitude with either sign first, one element alone,
// constants, huge and tiny ones.
std::vector<std::vector<float>> heads(int dim) {
  std::vector<std::vector<float>> all;
  uint64_t state = static_cast<uint64_t>(dim);
  for (int kind = 0; kind < 400; ++kind) {
    std::vector<float> x(static_cast<size_t>(dim));
    const double size = std::pow(10.0, kind % 13 - 6);
    for (float& v : x) v = static_cast<float>((uniform_from(cpu::testing::random_bits(state)) - 0.5) * size);
    const auto place = [&] { return static_cast<size_t>(cpu::testing::random_below(state, dim)); };
    if (kind % 7 == 1) std::fill(x.begin(), x.end(), static_cast<float>(kind % 2 ? size : 0));
    if (kind % 7 == 2) x[place()] = static_cast<float>(size), x[place()] = static_cast<float>(-size);
    if (kind % 7 == 3) std::fill(x.begin(), x.end(), 0.0f), x[place()] = static_cast<float>(-size);
    if (kind % 7 == 4) x[place()] = 3e38f, x[place()] = -3e38f;
    if (kind % 7 == 5)
      for (float& v : x) v = std::round(v / static_cast<float>(size) * 8) * static_cast<float>(size);  // many ties
    all.push_back(x);
  }
  return all;
}

TEST(Nibbles, CodesAndScalesAreThoseOfTheQuantiser) {
  for (const DType type : kTypes)
    for (const int dim : {32, 64, 96, 128, 256})
      for (std::vector<float> x : heads(dim)) {
        const Head head = store(type, x);
        for (float& v : x) v = std::clamp(v, -65504.0f, 65504.0f);  // as the records of the CPU backend
        std::vector<std::byte> blocks(dtype_bytes(type, dim));
        quantise(type, x.data(), dim, blocks.data());
        const size_t numbers = type == DType::kQ4_1 ? 2 : 1, bytes = static_cast<size_t>(dtype_info(type).bytes);
        for (size_t b = 0; b < x.size() / 32; ++b) {
          const std::byte* block = blocks.data() + b * bytes;
          ASSERT_EQ(0, std::memcmp(block, head.scales.data() + b * numbers, numbers * 2)) << dtype_name(type);
          for (size_t i = 0; i < 32; ++i) {
            const auto pair = std::to_integer<unsigned>(block[numbers * 2 + i % 16]);
            ASSERT_EQ(i < 16 ? pair & 15u : pair >> 4, head.words[4 * b + i / 8] >> (4 * (i % 8)) & 15u)
                << dtype_name(type) << " element " << i;
          }
        }
      }
}

TEST(Nibbles, ValuesAreThoseOfTheCpuStoreBeforeItRoundsThem) {
  for (const DType type : kTypes)
    for (const int dim : {64, 256}) {
      const cpu::KvLayout l = cpu::make_layout(type, type, dim, cpu::Isa::kGeneric);
      std::vector<std::byte> block(l.bytes);
      std::vector<float> stored(static_cast<size_t>(dim)), plain(static_cast<size_t>(dim));
      for (const std::vector<float>& x : heads(dim)) {
        cpu::store_key(l, block.data(), 5, x.data());
        cpu::load_key(l, block.data(), 5, stored.data());
        std::vector<float> clamped = x;
        for (float& v : clamped) v = std::clamp(v, -65504.0f, 65504.0f);
        std::vector<std::byte> blocks(dtype_bytes(type, dim));
        quantise(type, clamped.data(), dim, blocks.data());
        dequantise(type, blocks.data(), dim, plain.data());
        const std::vector<float> mine = widen(type, store(type, x), dim);
        for (size_t i = 0; i < mine.size(); ++i) {
          ASSERT_EQ(mine[i], plain[i]) << dtype_name(type);
          ASSERT_EQ(bf16_to_float(float_to_bf16(mine[i])), stored[i]) << dtype_name(type);
        }
      }
    }
}

// Words of the other types, and where each one's scale lies.
TEST(Nibbles, WordsOfOtherTypes) {
  float out[8];
  widen_word(DType::kQ8_0, 0x80ff7f01u, 0.5f, 0, out);
  EXPECT_EQ(std::vector<float>(out, out + 4), (std::vector<float>{0.5f, 63.5f, -0.5f, -64.0f}));
  widen_word(DType::kBF16, 0xc0003f80u, 0, 0, out);
  EXPECT_EQ(std::vector<float>(out, out + 2), (std::vector<float>{1, -2}));
  widen_word(DType::kF16, 0xc0003c00u, 0, 0, out);
  EXPECT_EQ(std::vector<float>(out, out + 2), (std::vector<float>{1, -2}));
  for (const int dim : {32, 64, 96, 128, 192, 256})
    for (const DType type : {DType::kBF16, DType::kF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
      EXPECT_EQ(side_words(type, dim) * per_word(type), dim);
      EXPECT_LE(side_words(type, dim), 4 * 32) << "what a warp holds";
      EXPECT_LE(side_scales(type, dim), 32) << "one for each lane";
      for (int w = 0; side_scales(type, dim) > 0 && w < side_words(type, dim); ++w) {
        const int numbers = type == DType::kQ4_1 ? 2 : 1;
        EXPECT_EQ(scale_of_word(type, w) / numbers, w * per_word(type) / 32);
        EXPECT_LE(scale_of_word(type, w) + numbers, side_scales(type, dim));
      }
      const size_t bytes = size_t(side_words(type, dim)) * 4 + size_t(side_scales(type, dim)) * 2;
      EXPECT_EQ(bytes, dtype_bytes(type, dim)) << dtype_name(type);
    }
}

}  // namespace
}  // namespace sx::cuda
