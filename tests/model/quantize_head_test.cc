// Draft heads in other types: every matrix holds exactly the blocks it should, everything else the bytes it had. And
// the plain rounding, held against what the training scripts simulate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "convert_fixture.h"
#include "heads/head_parts.h"
#include "model/convert/nearest.h"
#include "model/convert/quantize_head.h"
#include "tensor/blocks.h"
#include "tensor/quantise_search.h"

namespace sx {
namespace {

using testing::Bytes;
using ::testing::HasSubstr;
using testing::HeadParts;
using testing::TempFolder;
using Quantise = void (*)(DType, const float*, int64_t, void*);

// The values that blocks made of `values` stand for.
std::vector<float> through(Quantise quantise_with, DType type, const std::vector<float>& values) {
  const auto count = static_cast<int64_t>(values.size());
  Bytes blocks(dtype_bytes(type, count));
  std::vector<float> out(values.size());
  quantise_with(type, values.data(), count, blocks.data());
  dequantise(type, blocks.data(), count, out.data());
  return out;
}

TEST(Nearest, IsWhatTrainingSimulates) {
  const SafetensorsFile file(SX_MODEL_DATA "/nearest.safetensors");
  const auto floats = [&](const char* name) {
    const Tensor& t = file.get(name);
    const auto* values = reinterpret_cast<const float*>(t.data);
    return std::vector<float>(values, values + t.elements());
  };
  const auto weight = floats("weight");
  for (const auto& [type, name] : {std::pair{DType::kQ4_0, "q4_0"}, std::pair{DType::kQ8_0, "q8_0"}}) {
    const auto simulated = floats(name);
    EXPECT_TRUE(through(quantise_nearest, type, weight) == simulated) << name;  // == : a code has no sign of zero
    // The others are something else, so that the test can tell.
    EXPECT_FALSE(through(quantise, type, weight) == simulated) << name;
    EXPECT_FALSE(through(quantise_search, type, weight) == simulated) << name;
  }
}

ModelConfig target_config() {
  testing::TinySpec spec;
  spec.layers = 6;
  return testing::tiny_config(spec);
}

// 159 rows: blocks of an odd size, behind which 8-byte numbers would not be aligned.
HeadParts eagle3_head() {
  const ModelConfig target = target_config();
  HeadParts parts =
      testing::random_head(testing::eagle3_config(target, 1, 159), {"lm_head.weight", "d2t"}, target, DType::kBF16, 4);
  for (auto& part : parts.tensors)
    if (part.name.starts_with("layers.0.")) part.name.replace(0, 8, "midlayer");  // a name that is not canonical
  parts.tensors.push_back({"t2d", "BOOL", {target.vocab}, Bytes(static_cast<size_t>(target.vocab), std::byte{1})});
  return parts;
}

HeadParts eagle1_head() {
  const ModelConfig target = target_config();
  return testing::random_head(testing::eagle1_config(target), {"fc.weight", "fc.bias"}, target, DType::kF32, 5);
}

HeadParts medusa_head() {
  const ModelConfig target = target_config();
  HeadParts parts = testing::random_head(
      {{"medusa_num_heads", 3}, {"hidden_size", target.width}, {"vocab_size", target.vocab}},
      {"blocks.2.layers.1.weight", "blocks.0.layers.0.bias", "lm_heads.2.weight"}, target, DType::kBF16, 6);
  std::vector<int64_t> map(size_t(target.vocab));
  for (size_t i = 0; i < map.size(); ++i) map[i] = int64_t(map.size() - 1 - i);
  const auto* bytes = reinterpret_cast<const std::byte*>(map.data());
  parts.tensors.push_back({"token_map", "I64", {target.vocab}, Bytes(bytes, bytes + map.size() * sizeof(int64_t))});
  return parts;
}

// What a matrix of the source becomes.
Bytes expected_blocks(const Tensor& source, DType type, Quantise quantise_with) {
  std::vector<float> values(static_cast<size_t>(source.elements()));
  dequantise(source.type, source.data, source.elements(), values.data());
  Bytes out(dtype_bytes(type, source.elements()));
  quantise_with(type, values.data(), source.elements(), out.data());
  return out;
}

void expect_quantised(const HeadParts& parts, bool nearest) {
  const TempFolder temp;
  parts.write(temp.file("in"));
  const ConvertReport report =
      quantize_head(temp.file("in"), {.out = temp.file("out"),
                                      .types = {.matrices = DType::kQ8_0, .output = DType::kQ4_0},
                                      .write = {.nearest = nearest}});
  EXPECT_TRUE(report.notes.empty());
  const auto head = HeadFile::open(temp.file("out"), target_config());  // checks shapes and tables
  const auto source = HeadFile::open(temp.file("in"), target_config());
  ASSERT_EQ(head->tensors().size(), source->tensors().size());
  int matrices = 0;
  for (const NamedTensor& was : source->tensors()) {
    const Tensor& now = head->get(was.name);
    const auto named = [&](const NamedTensor& t) { return t.original == was.original; };
    EXPECT_TRUE(std::any_of(head->tensors().begin(), head->tensors().end(), named)) << was.original;
    const bool matrix = was.tensor.rank == 2;
    const DType type = !matrix ? was.tensor.type : was.name.starts_with("lm_head") ? DType::kQ4_0 : DType::kQ8_0;
    ASSERT_EQ(now.type, type) << was.name;
    const Bytes expected = matrix ? expected_blocks(was.tensor, type, nearest ? quantise_nearest : quantise_search)
                                  : Bytes(was.tensor.data, was.tensor.data + was.tensor.bytes());
    EXPECT_TRUE(Bytes(now.data, now.data + now.bytes()) == expected) << was.name;
    matrices += matrix;
  }
  EXPECT_GT(matrices, 3);
  EXPECT_EQ(testing::read_file(temp.file("out/config.json")), testing::read_file(temp.file("in/config.json")));
  const SafetensorsFile before(temp.file("in/model.safetensors")), after(temp.file("out/model.safetensors"));
  EXPECT_EQ(after.tensors().size(), before.tensors().size());
  for (const auto& t : after.tensors()) {
    ASSERT_NE(before.find(t.name), nullptr) << t.name;
    const auto at = t.tensor.data - after.bytes().data();  // a copy, elsewhere, if it were not aligned
    EXPECT_GE(at, 0) << t.name;
    EXPECT_EQ(at % dtype_info(t.tensor.type).bytes, 0) << t.name << " is not aligned in the file";
  }
  if (const Tensor* table = before.find("t2d")) {
    const Tensor& kept = after.get("t2d");
    EXPECT_EQ(kept.type, DType::kBool);
    EXPECT_TRUE(Bytes(kept.data, kept.data + kept.bytes()) == Bytes(table->data, table->data + table->bytes()));
  }
}

TEST(QuantizeHead, MatricesBecomeBlocksAndTheRestStays) {
  for (const bool nearest : {false, true}) {
    expect_quantised(eagle3_head(), nearest);
    expect_quantised(eagle1_head(), nearest);
    expect_quantised(medusa_head(), nearest);
  }
}

TEST(QuantizeHead, TypesOfSingleTensors) {
  const TempFolder temp;
  eagle3_head().write(temp.file("in"));
  QuantizeJob job{.out = temp.file("out"), .types = {.matrices = DType::kQ4_0}};
  job.types.single = {{"midlayer.mlp.up_proj.weight", DType::kBF16}, {"fc.weight", DType::kQ4_1}};
  quantize_head(temp.file("in"), job);
  const auto head = HeadFile::open(temp.file("out"), target_config());
  EXPECT_EQ(head->get("layers.0.mlp.up_proj.weight").type, DType::kBF16);
  EXPECT_EQ(head->get("fc.weight").type, DType::kQ4_1);
  EXPECT_EQ(head->get("layers.0.mlp.down_proj.weight").type, DType::kQ4_0);
  EXPECT_EQ(head->get("lm_head.weight").type, DType::kQ8_0);  // as for models: beside 4-bit types
}

TEST(QuantizeHead, Refusals) {
  const TempFolder temp;
  eagle3_head().write(temp.file("in"));
  const auto refusal = [&](TypeChoice types, const std::string& in = "in", bool nearest = false) {
    return message_of([&] {
      quantize_head(temp.file(in), {.out = temp.file("out"), .types = std::move(types), .write = {.nearest = nearest}});
    });
  };
  EXPECT_THAT(refusal({.single = {{"fc", DType::kQ8_0}}}), HasSubstr("no tensor 'fc'"));
  EXPECT_THAT(refusal({.single = {{"norm.weight", DType::kQ8_0}}}), HasSubstr("'norm.weight' is no matrix"));
  EXPECT_THAT(refusal({.matrices = DType::kQ4_K}, "in", true), HasSubstr("Q4_K has no plain rounding"));
  EXPECT_THAT(refusal({.matrices = DType::kQ6_K}), HasSubstr("Q6_K cannot be written"));
  EXPECT_THAT(refusal({.embedding = DType::kQ8_0}), HasSubstr("no embedding of its own"));
  EXPECT_THAT(refusal({}, "absent"), HasSubstr("absent"));
  EXPECT_FALSE(std::filesystem::exists(temp.file("out")));
  EXPECT_EQ(refusal({}), "no error");
  EXPECT_THAT(refusal({}), HasSubstr("not empty"));
  EXPECT_THAT(message_of([&] { quantize_head(temp.file("out"), {.out = temp.file("two"), .types = {DType::kQ4_0}}); }),
              HasSubstr("is already Q8_0"));
  EXPECT_THAT(message_of([&] { quantize_head(temp.file("in"), {.out = temp.file("in/../in"), .force = true}); }),
              HasSubstr("overwrite itself"));
  auto parts = medusa_head();
  parts.config.erase("vocab_size");
  parts.write(temp.file("medusa"));
  EXPECT_THAT(refusal({}, "medusa"), HasSubstr("'vocab_size'"));
}

}  // namespace
}  // namespace sx
