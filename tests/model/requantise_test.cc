// Copies of weights in fewer bits: what is made smaller, what stays, and that threads do not matter.
#include "model/requantise.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "backend/registry.h"
#include "model/model.h"
#include "support/model_writer.h"
#include "tensor/blocks.h"

namespace sx {
namespace {

using testing::TempFolder;
using testing::TinySpec;

struct Matrix2d {
  std::vector<std::byte> bytes;
  Tensor tensor;
};

Matrix2d random_tensor(DType type, int64_t rows, int64_t columns) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(size_t(rows * columns));
  for (float& value : values) value = normal(random);
  Matrix2d made;
  made.bytes.resize(dtype_bytes(type, rows * columns));
  quantise(type, values.data(), rows * columns, made.bytes.data());
  made.tensor = {type, 2, {rows, columns}, made.bytes.data()};
  return made;
}

TEST(Requantise, RoundsEveryRowToNearest) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kQ8_0}) {
    const Matrix2d from = random_tensor(type, 37, 96);
    Requantiser requantise(DType::kQ4_0);
    std::vector<std::byte> memory;
    const Tensor to = requantise.make(from.tensor, memory);
    ASSERT_EQ(to.type, DType::kQ4_0);
    ASSERT_EQ(to.shape, from.tensor.shape);
    std::vector<float> values(37 * 96);
    std::vector<std::byte> expected(dtype_bytes(DType::kQ4_0, 37 * 96));
    dequantise(type, from.tensor.data, 37 * 96, values.data());
    quantise(DType::kQ4_0, values.data(), 37 * 96, expected.data());
    EXPECT_EQ(std::memcmp(to.data, expected.data(), expected.size()), 0) << dtype_name(type);
  }
}

TEST(Requantise, LeavesWhatIsSmallOrNotInWholeBlocks) {
  Requantiser requantise(DType::kQ4_0);
  std::vector<std::byte> memory;
  const Matrix2d small = random_tensor(DType::kQ4_0, 4, 64), odd = random_tensor(DType::kF16, 4, 40);
  EXPECT_EQ(requantise.make(small.tensor, memory).data, small.tensor.data);
  EXPECT_EQ(requantise.make(odd.tensor, memory).data, odd.tensor.data);
  EXPECT_EQ(requantise.make(random_tensor(DType::kQ8_0, 4, 64).tensor, DType::kQ8_0, memory).type, DType::kQ8_0);
  EXPECT_TRUE(memory.empty());
}

// A copy is smaller, reads the original's embedding, and computes something close to the original.
TEST(Requantise, CopiesAModel) {
  TempFolder folder;
  TinySpec spec;
  spec.weights = DType::kBF16;
  testing::write_tiny_gguf(folder.file("model.gguf"), spec);
  const auto backend = make_cpu_backend({2, std::nullopt});
  ModelOptions options;
  options.max_rows = options.max_outputs = 8, options.context = 64;
  const auto model = Model::load(ModelFile::open(folder.file("model.gguf")), *backend, options);
  Requantiser requantise(DType::kQ4_0);
  options.requantise = &requantise, options.original = model.get();
  const auto copy = Model::load(model->file(), *backend, options);
  EXPECT_EQ(copy->embedding().data, model->embedding().data);
  EXPECT_LT(copy->weight_bytes(), model->weight_bytes() / 2);
  const auto kv = backend->make_kv(model->kv_geometry(1, 64, DType::kF32));
  const std::vector<Token> tokens = {5, 9, 2, 7};
  const std::vector<int32_t> positions = {0, 1, 2, 3}, outputs = {3};
  const SeqRows seq{.rows = 4};
  const auto logits = [&](Model& m) {
    const float* row = m.forward({tokens, positions, {&seq, 1}, outputs}, *kv).logits;
    return std::vector<float>(row, row + m.config().vocab);
  };
  const std::vector<float> a = logits(*model), b = logits(*copy);
  double apart = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) apart += double(a[i] - b[i]) * double(a[i] - b[i]), size += double(a[i]) * a[i];
  EXPECT_GT(apart, 0);
  EXPECT_LT(apart, 0.2 * size);
}

}  // namespace
}  // namespace sx
