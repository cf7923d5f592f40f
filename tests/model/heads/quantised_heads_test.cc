// Heads stored quantised (U8 tensors with metadata): they load, lie at any address, and compute what the same head with
// the dequantised weights in F32 computes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/registry.h"
#include "head_parts.h"
#include "model/heads/eagle.h"
#include "model/heads/medusa.h"
#include "support/reference_backend.h"
#include "tensor/blocks.h"

namespace sx {
namespace {

using testing::Bytes;
using testing::HeadParts;
using testing::TempFolder;
using testing::TinySpec;

TinySpec target_spec() {
  TinySpec spec;
  spec.layers = 5;
  return spec;
}

// The same head with plain F32 tensors.
HeadParts dequantised(const HeadParts& parts) {
  HeadParts out = parts;
  out.metadata.clear();
  for (auto& part : out.tensors) {
    if (part.dtype != "U8") continue;
    const DType type = *dtype_from_name(parts.metadata.at(part.name));
    long long rows = 0, columns = 0;
    EXPECT_EQ(std::sscanf(parts.metadata.at(part.name + ".shape").c_str(), "%lld,%lld", &rows, &columns), 2);
    Bytes values(size_t(rows * columns) * sizeof(float));
    dequantise(type, part.data.data(), rows * columns, reinterpret_cast<float*>(values.data()));
    part = {part.name, "F32", {rows, columns}, std::move(values)};
  }
  return out;
}

// Logits and states of six rows.
std::vector<float> run_eagle(const std::string& target_folder, const std::string& folder, Backend& backend) {
  const auto target = Model::load(ModelFile::open(target_folder), backend, {});
  const auto head =
      EagleHead::load(HeadFile::open(folder, target->config()), *target, backend, {.max_rows = 8, .max_outputs = 8});
  const auto kv = backend.make_kv(head->kv_geometry(1, 64, DType::kF32));
  const Token tokens[] = {7, 300, 12, 13, 5, 0};
  const int32_t positions[] = {0, 1, 2, 3, 4, 5}, outputs[] = {0, 1, 2, 3, 4, 5};
  const SeqRows seq = {0, 6, 0, 0};
  const size_t taps = head->config().features.size();
  std::vector<float> features(taps * 6 * 64), states(6 * 64);
  for (size_t i = 0; i < features.size(); ++i) features[i] = std::sin(float(i) * 0.7f);
  std::vector<const float*> at;
  for (size_t i = 0; i < taps; ++i) at.push_back(&features[i * 6 * 64]);
  head->fuse(at, testing::rows_from(0, 6), states.data());
  const EagleOutputs& out = head->forward({{tokens, positions, {&seq, 1}, outputs}, states.data()}, *kv);
  std::vector<float> all(out.states, out.states + 6 * 64);
  all.insert(all.end(), out.logits, out.logits + 6 * size_t(head->config().draft_vocab));
  return all;
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b, double limit) {
  ASSERT_EQ(a.size(), b.size());
  double square = 0, worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    square += double(b[i]) * b[i];
    worst = std::max(worst, std::fabs(double(a[i]) - b[i]));
  }
  EXPECT_LE(worst, limit * std::sqrt(square / double(a.size())));
}

TEST(QuantisedHead, EqualsTheHeadOfDequantisedWeights) {
  const TempFolder folder;
  testing::write_tiny_hf(folder.file("target"), target_spec());
  const ModelConfig config = testing::tiny_config(target_spec());
  for (const DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
    SCOPED_TRACE(dtype_name(type));
    auto parts = testing::random_head(testing::eagle3_config(config, 2, 160),
                                      {"lm_head.weight", "embed_tokens.weight", "d2t"}, config, type, 3);
    parts.write(folder.file("quantised"));
    dequantised(parts).write(folder.file("plain"));
    // Three bytes before all others: every block now lies at an odd address.
    parts.tensors.insert(parts.tensors.begin(), {"t2d", "BOOL", {3}, Bytes(3)});
    parts.write(folder.file("odd"));
    const auto reference = make_reference_backend();
    const auto plain = run_eagle(folder.file("target"), folder.file("plain"), *reference);
    EXPECT_EQ(plain, run_eagle(folder.file("target"), folder.file("quantised"), *reference));
    EXPECT_EQ(plain, run_eagle(folder.file("target"), folder.file("odd"), *reference));
    for (const cpu::Isa isa : cpu::available_isas()) {
      const auto backend = make_cpu_backend({2, isa});
      const auto quantised = run_eagle(folder.file("target"), folder.file("quantised"), *backend);
      expect_near(quantised, plain, 0.15);  // activations are rounded to 8 bits
      EXPECT_EQ(quantised, run_eagle(folder.file("target"), folder.file("odd"), *backend));
    }
  }
}

TEST(QuantisedHead, Medusa) {
  const TempFolder folder;
  testing::write_tiny_hf(folder.file("target"), target_spec());
  const ModelConfig config = testing::tiny_config(target_spec());
  const auto parts = testing::random_head({{"medusa_num_heads", 2}}, {"blocks.1.layers.0.weight", "lm_heads.1.weight"},
                                          config, DType::kQ8_0, 6);
  parts.write(folder.file("quantised"));
  dequantised(parts).write(folder.file("plain"));
  const auto backend = make_reference_backend();
  const auto target = Model::load(ModelFile::open(folder.file("target")), *backend, {});
  std::vector<float> states(3 * 64), results[2];
  for (size_t i = 0; i < states.size(); ++i) states[i] = std::cos(float(i));
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const auto file = HeadFile::open(folder.file(i == 0 ? "plain" : "quantised"), config);
    const auto heads = MedusaHeads::load(file, *target, *backend, 4);
    const float* logits = heads->forward(states.data(), 3);
    results[i].assign(logits, logits + 3 * 2 * config.vocab);
  }
  EXPECT_EQ(results[0], results[1]);
}

// The state beside the mask token is the fused mask_hidden; layers beyond the first are plain.
TEST(ParallelHead, MaskStateIsFused) {
  const TempFolder folder;
  testing::write_tiny_hf(folder.file("target"), target_spec());
  const ModelConfig config = testing::tiny_config(target_spec());
  auto json = testing::eagle3_config(config, 4, config.vocab);
  json["mask_token_id"] = 5;
  const auto parts = testing::random_head(json, {"mask_hidden", "embed_tokens.weight"}, config, DType::kF32, 9);
  parts.write(folder.file("head"));
  const auto backend = make_reference_backend();
  const auto target = Model::load(ModelFile::open(folder.file("target")), *backend, {});
  const auto file = HeadFile::open(folder.file("head"), config);
  const auto head = EagleHead::load(file, *target, *backend, {});
  EXPECT_EQ(head->config().mask_token, 5);
  ASSERT_NE(head->mask_state(), nullptr);
  const auto* mask = reinterpret_cast<const float*>(file->get("mask_hidden").data);
  const auto* fc = reinterpret_cast<const float*>(file->get("fc.weight").data);
  for (size_t i = 0; i < 64; ++i) {
    double sum = 0;
    for (size_t j = 0; j < 192; ++j) sum += double(mask[j]) * fc[i * 192 + j];
    EXPECT_NEAR(head->mask_state()[i], sum, 1e-5);
  }
}

}  // namespace
}  // namespace sx
