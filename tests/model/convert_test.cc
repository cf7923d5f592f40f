// Conversion, quantisation and widening of tiny models: against the test writers (which write the same model in both
// forms), tensor by tensor with memcmp, and by the logits of the models that come out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "convert_fixture.h"
#include "model/convert/convert.h"
#include "model/convert/quantize.h"
#include "formats/family.h"
#include "formats/hf_config.h"
#include "tensor/blocks.h"

namespace sx {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempFolder;
using testing::TinySpec;
namespace fs = std::filesystem;

void expect_same_tensors(const ModelFile& a, const ModelFile& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const auto& left : a.tensors()) {
    const NamedTensor* right = b.find(left.name);
    ASSERT_TRUE(right) << left.name;
    ASSERT_EQ(left.tensor.type, right->tensor.type) << left.name;
    ASSERT_EQ(left.tensor.shape, right->tensor.shape) << left.name;
    ASSERT_EQ(std::memcmp(left.tensor.data, right->tensor.data, left.tensor.bytes()), 0) << left.name;
  }
}

void expect_same_config(const ModelConfig& a, const ModelConfig& b) {
  const auto fields = [](const ModelConfig& c) {
    return std::tuple(std::string(c.family->gguf), c.layers, c.width, c.heads, c.kv_heads, c.head_dim, c.ffn, c.vocab,
                      c.context, c.norm_eps, c.window, windowed_layers(c), c.tied_head, c.qkv_bias, c.out_bias,
                      c.mlp_bias, c.qk_norm);
  };
  EXPECT_EQ(fields(a), fields(b));
  const auto rope = [](const RopeConfig& r) {
    return std::tuple(r.dims, r.base, r.factor, r.original_context, r.beta_fast, r.beta_slow);
  };
  EXPECT_EQ(a.rope.scaling, b.rope.scaling);
  EXPECT_EQ(rope(a.rope), rope(b.rope));
}

struct Case {
  const char* name;
  TinySpec spec;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  const auto add = [&](const char* name, auto change) {
    TinySpec spec;
    change(spec);
    out.push_back({name, spec});
  };
  add("llama", [](TinySpec&) {});
  add("llama_bf16_tied", [](TinySpec& s) { s.weights = DType::kBF16, s.tied = true, s.head_dim = 32; });
  add("llama_f16", [](TinySpec& s) { s.weights = DType::kF16, s.kv_heads = 4, s.rope_base = 500000; });
  add("llama_biases", [](TinySpec& s) { s.qkv_bias = s.out_bias = s.mlp_bias = true; });
  add("llama_llama3", [](TinySpec& s) { s.scaling = RopeScaling::kLlama3, s.factor = 8, s.original_context = 256; });
  add("llama_linear", [](TinySpec& s) { s.scaling = RopeScaling::kLinear, s.factor = 4; });
  add("llama_yarn", [](TinySpec& s) { s.scaling = RopeScaling::kYarn, s.factor = 4, s.original_context = 512; });
  add("mistral_window", [](TinySpec& s) { s.arch = "mistral", s.window = 20; });
  add("mistral_pattern", [](TinySpec& s) { s.arch = "mistral", s.window = 20, s.windowed_layers = {1, 0}; });
  add("qwen2", [](TinySpec& s) { s.arch = "qwen2", s.weights = DType::kBF16; });
  add("qwen2_window", [](TinySpec& s) { s.arch = "qwen2", s.window = 24, s.windowed_layers = {0, 1}; });
  add("qwen3", [](TinySpec& s) { s.arch = "qwen3", s.head_dim = 32, s.tied = true; });
  add("qwen3_yarn",
      [](TinySpec& s) { s.arch = "qwen3", s.scaling = RopeScaling::kYarn, s.factor = 2, s.original_context = 1024; });
  return out;
}

class Convert : public ::testing::TestWithParam<Case> {};

TEST_P(Convert, FolderToGgufEqualsTheTestWritersFileAndComesBackUnchanged) {
  const TempFolder temp;
  const TinySpec& spec = GetParam().spec;
  testing::write_tiny_hf(temp.file("folder"), spec, 2);
  testing::write_tiny_gguf(temp.file("expected.gguf"), spec);
  const auto folder = ModelFile::open(temp.file("folder")), expected = ModelFile::open(temp.file("expected.gguf"));
  convert_to_gguf(*folder, {}, {.out = temp.file("made.gguf")});
  const auto made = ModelFile::open(temp.file("made.gguf"));
  if (spec.scaling != RopeScaling::kLlama3) expect_same_tensors(*expected, *made);
  expect_same_config(expected->config(), made->config());
  ASSERT_EQ(expected->config().rope.factors.size(), made->config().rope.factors.size());
  for (size_t i = 0; i < made->config().rope.factors.size(); ++i)
    EXPECT_FLOAT_EQ(expected->config().rope.factors[i], made->config().rope.factors[i]);

  TokenizerData ids;
  ids.bos = ids.eos = 0;
  convert_to_folder(*made, ids, {.out = temp.file("back")});
  const auto back = ModelFile::open(temp.file("back"));
  expect_same_tensors(*folder, *back);
  expect_same_config(folder->config(), back->config());
  EXPECT_EQ(back->tokenizer().eos, 0);

  const auto text = random_text(60, spec.vocab, 1);
  const auto before = logits_of(temp.file("folder"), text);
  EXPECT_TRUE(same_bits(before, logits_of(temp.file("back"), text)));
  const auto between = logits_of(temp.file("made.gguf"), text);
  EXPECT_TRUE(same_bits(between, logits_of(temp.file("expected.gguf"), text)));
  EXPECT_LT(largest_difference(before, between), 1e-4);  // llama: the same sums in another order
  if (spec.arch.starts_with("qwen")) { EXPECT_TRUE(same_bits(before, between)); }
}

INSTANTIATE_TEST_SUITE_P(Models, Convert, ::testing::ValuesIn(cases()),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(ConvertTypes, QuantisedGgufToFolderIsItsDequantisedValues) {
  const TempFolder temp;
  TinySpec spec;
  spec.weights = DType::kQ4_1, spec.embedding = DType::kQ8_0, spec.tied = true;
  testing::write_tiny_gguf(temp.file("q.gguf"), spec);
  const auto source = ModelFile::open(temp.file("q.gguf"));
  const auto report = convert_to_folder(*source, {}, {.out = temp.file("f32"), .type = DType::kF32});
  EXPECT_TRUE(report.notes.empty());
  const auto folder = ModelFile::open(temp.file("f32"));
  for (const auto& tensor : folder->tensors()) {
    if (tensor.name.find("attn_q.") != std::string::npos || tensor.name.find("attn_k.") != std::string::npos) continue;
    const Tensor& from = source->get(tensor.name);
    std::vector<float> values(static_cast<size_t>(from.elements()));
    dequantise(from.type, from.data, from.elements(), values.data());
    EXPECT_EQ(std::memcmp(values.data(), tensor.tensor.data, tensor.tensor.bytes()), 0) << tensor.name;
  }
  const auto text = random_text(40, spec.vocab, 2);
  const auto exact = logits_of(temp.file("f32"), text);
  // The quantised model rounds its activations too, so it is only near.
  EXPECT_LT(relative_difference(exact, logits_of(temp.file("q.gguf"), text)), 0.04);
  const auto rounded = convert_to_folder(*source, {}, {.out = temp.file("bf16")});
  EXPECT_THAT(rounded.notes, ElementsAre(HasSubstr("--type F32")));
  EXPECT_LT(relative_difference(exact, logits_of(temp.file("bf16"), text)), 0.02);
}

TEST(ConvertTypes, LargeFoldersAreSplitAndReadBack) {
  const TempFolder temp;
  TinySpec spec;
  testing::write_tiny_gguf(temp.file("a.gguf"), spec);
  const auto source = ModelFile::open(temp.file("a.gguf"));
  convert_to_folder(*source, {}, {.out = temp.file("split"), .shard_bytes = 60'000});
  EXPECT_TRUE(fs::exists(temp.file("split/model.safetensors.index.json")));
  convert_to_folder(*source, {}, {.out = temp.file("whole")});
  EXPECT_FALSE(fs::exists(temp.file("whole/model.safetensors.index.json")));
  expect_same_tensors(*ModelFile::open(temp.file("whole")), *ModelFile::open(temp.file("split")));
}

TEST(ConvertTypes, BiasesOfHalfAGroupAreCompletedWithZeros) {
  const TempFolder temp;
  TinySpec spec;
  spec.qkv_bias = true;
  testing::write_tiny_gguf(temp.file("a.gguf"), spec);
  convert_to_folder(*ModelFile::open(temp.file("a.gguf")), {}, {.out = temp.file("folder")});
  const auto text = random_text(40, spec.vocab, 3);
  EXPECT_TRUE(ModelFile::open(temp.file("folder"))->config().out_bias);
  EXPECT_LT(largest_difference(logits_of(temp.file("a.gguf"), text), logits_of(temp.file("folder"), text)), 1e-4);
}

TEST(ConvertNames, EveryTensorNameGoesBothWays) {
  for (const char* arch : {"llama", "qwen2", "qwen3"}) {
    TinySpec spec;
    spec.arch = arch, spec.layers = 12;
    for (const auto& tensor : testing::tiny_tensors(spec)) {
      EXPECT_EQ(hf_name(tensor.name), tensor.hf_name);
      EXPECT_EQ(canonical_name(tensor.hf_name), tensor.name);
    }
  }
  for (const char* name : {"rope_freqs.weight", "blk.weight", "blk.0.attn_q", "blk.0.unknown.weight", ""})
    EXPECT_FALSE(hf_name(name));
}

struct QuantizeCase {
  DType type, embedding;
  double near;  // bound on the relative difference of the logits
};

TEST(Quantize, ModelsRunAndTheirLogitsAreNear) {
  const TempFolder temp;
  TinySpec spec;
  spec.width = 256, spec.heads = 8, spec.kv_heads = 4, spec.ffn = 512;
  testing::write_tiny_hf(temp.file("folder"), spec);
  const auto file = ModelFile::open(temp.file("folder"));
  const auto text = random_text(48, spec.vocab, 4);
  const auto exact = logits_of(temp.file("folder"), text);
  const QuantizeCase rows[] = {{DType::kF32, DType::kF32, 1e-5},   {DType::kF16, DType::kF16, 2e-2},
                               {DType::kBF16, DType::kBF16, 2e-2}, {DType::kQ8_0, DType::kQ8_0, 4e-2},
                               {DType::kQ4_1, DType::kQ8_0, 0.3},  {DType::kQ4_0, DType::kQ8_0, 0.35},
                               {DType::kQ4_K, DType::kQ8_0, 0.3}};
  for (const auto& row : rows) {
    const std::string path = temp.file(std::string(dtype_name(row.type)) + ".gguf");
    const auto report = quantize_model(*file, {}, {.out = path, .types = {.matrices = row.type}});
    EXPECT_TRUE(report.notes.empty());
    EXPECT_EQ(report.bytes, fs::file_size(path));
    const auto made = ModelFile::open(path);
    EXPECT_EQ(made->get("blk.1.ffn_down.weight").type, row.type);
    EXPECT_EQ(made->get("token_embd.weight").type, row.embedding);
    EXPECT_EQ(made->get("output.weight").type, row.embedding);
    EXPECT_EQ(made->get("blk.0.attn_norm.weight").type, DType::kF32);
    const double difference = relative_difference(exact, logits_of(path, text));
    EXPECT_LT(difference, row.near) << dtype_name(row.type);
    if (row.type == DType::kQ4_0 || row.type == DType::kQ4_1) {  // the plain quantiser of the test writer
      TinySpec plain = spec;
      plain.weights = row.type, plain.embedding = row.embedding;
      testing::write_tiny_gguf(temp.file("plain.gguf"), plain);
      EXPECT_LT(difference, relative_difference(exact, logits_of(temp.file("plain.gguf"), text)))
          << dtype_name(row.type);
    }
    RecordProperty(std::string("difference_") + dtype_name(row.type), std::to_string(difference));
  }
}

TEST(Quantize, OwnTypesForEmbeddingAndHead) {
  const TempFolder temp;
  testing::write_tiny_gguf(temp.file("a.gguf"), {});
  const auto file = ModelFile::open(temp.file("a.gguf"));
  quantize_model(*file, {}, {.out = temp.file("b.gguf"), .types = {DType::kQ4_0, DType::kF16, DType::kBF16}});
  const auto made = ModelFile::open(temp.file("b.gguf"));
  EXPECT_EQ(made->get("token_embd.weight").type, DType::kF16);
  EXPECT_EQ(made->get("output.weight").type, DType::kBF16);
  // All other keys came along.
  EXPECT_EQ(made->tokenizer().tokens, file->tokenizer().tokens);
  EXPECT_EQ(made->tokenizer().merges, file->tokenizer().merges);
  EXPECT_EQ(made->tokenizer().chat_template, file->tokenizer().chat_template);
  expect_same_config(file->config(), made->config());
}

TEST(Quantize, RowsThatDoNotDivideFallBackWithANote) {
  const TempFolder temp;
  TinySpec spec;
  spec.width = 96, spec.heads = 3, spec.kv_heads = 3, spec.ffn = 256;
  testing::write_tiny_gguf(temp.file("a.gguf"), spec);
  auto report = quantize_model(*ModelFile::open(temp.file("a.gguf")), {},
                               {.out = temp.file("k.gguf"), .types = {DType::kQ4_K, {}, {}}});
  EXPECT_THAT(report.notes, ::testing::Contains(HasSubstr("'blk.*.attn_q.weight' is Q8_0: its rows of 96")));
  EXPECT_EQ(report.notes.size(), 6u);  // q k v output gate up
  auto made = ModelFile::open(temp.file("k.gguf"));
  EXPECT_EQ(made->get("blk.0.attn_q.weight").type, DType::kQ8_0);
  EXPECT_EQ(made->get("blk.0.ffn_down.weight").type, DType::kQ4_K);
  spec.width = 80, spec.heads = 5, spec.kv_heads = 5;
  testing::write_tiny_gguf(temp.file("b.gguf"), spec);
  quantize_model(*ModelFile::open(temp.file("b.gguf")), {},
                 {.out = temp.file("c.gguf"), .types = {DType::kQ4_0, {}, {}}});
  made = ModelFile::open(temp.file("c.gguf"));
  EXPECT_EQ(made->get("blk.0.attn_q.weight").type, DType::kF16);
  EXPECT_EQ(made->get("token_embd.weight").type, DType::kF16);
  EXPECT_EQ(made->get("blk.0.ffn_down.weight").type, DType::kQ4_0);
}

TEST(Quantize, Refusals) {
  const TempFolder temp;
  TinySpec spec;
  spec.tied = true;
  testing::write_tiny_gguf(temp.file("a.gguf"), spec);
  const auto file = ModelFile::open(temp.file("a.gguf"));
  const auto run = [&](const std::string& out, TypeChoice types, bool force = false) {
    return message_of([&] { quantize_model(*file, {}, {.out = out, .types = types, .force = force}); });
  };
  EXPECT_THAT(run(temp.file("x.gguf"), {DType::kQ5_0, {}, {}}), HasSubstr("Q5_0 cannot be written"));
  EXPECT_THAT(run(temp.file("x.gguf"), {DType::kQ8_0, {}, DType::kF16}),
              HasSubstr("--embedding chooses the type of both"));
  EXPECT_THAT(run(temp.file("no/x.gguf"), {}), HasSubstr("there is no folder"));
  testing::write_file(temp.file("there.gguf"), std::string_view("something"));
  EXPECT_THAT(run(temp.file("there.gguf"), {}), HasSubstr("exists; --force overwrites it"));
  EXPECT_EQ(fs::file_size(temp.file("there.gguf")), 9u);
  EXPECT_EQ(run(temp.file("there.gguf"), {}, true), "no error");
  EXPECT_NO_THROW(ModelFile::open(temp.file("there.gguf")));
  EXPECT_THAT(run("/dev/full", {}, true), HasSubstr("no regular file"));
  EXPECT_THAT(run(temp.file("a.gguf"), {}, true), HasSubstr("overwrite itself"));
  const auto again = ModelFile::open(temp.file("there.gguf"));
  EXPECT_THAT(message_of([&] {
                quantize_model(*again, {}, {.out = temp.file("y.gguf"), .types = {DType::kQ4_0, {}, {}}});
              }),
              HasSubstr("tensor 'blk.0.attn_q.weight' is already Q8_0"));
  quantize_model(*again, {}, {.out = temp.file("y.gguf"), .types = {DType::kQ4_0, {}, {}, true}});
  EXPECT_NO_THROW(ModelFile::open(temp.file("y.gguf")));
}

TEST(Quantize, ValuesThatAreNoNumbersAreNamed) {
  const TempFolder temp;
  const auto with_value = [&](float value, DType type) {
    testing::write_tiny_hf(temp.file("folder"), {});
    auto bytes = testing::read_file(temp.file("folder/model.safetensors"));
    std::memcpy(bytes.data() + bytes.size() - 4, &value, 4);  // the last value of the head
    testing::write_file(temp.file("folder/model.safetensors"), bytes);
    return message_of([&] {
      quantize_model(*ModelFile::open(temp.file("folder")), {}, {.out = temp.file("x.gguf"), .types = {type, {}, {}}});
    });
  };
  EXPECT_THAT(with_value(NAN, DType::kQ8_0),
              HasSubstr("tensor 'lm_head.weight' holds a value that is not a finite number"));
  EXPECT_THAT(with_value(1e6f, DType::kF16), HasSubstr("tensor 'lm_head.weight' holds a value too large for F16"));
  EXPECT_EQ(with_value(1e6f, DType::kBF16), "no error");
  EXPECT_FALSE(fs::exists(temp.file("x.gguf.partial")));
}

// A limit on the size of files stands in for a full disk: the write fails half-way.
TEST(Output, AFailedWriteLeavesNothingBehind) {
  const TempFolder temp;
  testing::write_tiny_gguf(temp.file("a.gguf"), {});
  const auto file = ModelFile::open(temp.file("a.gguf"));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{100'000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto gguf = message_of([&] {
    quantize_model(*file, {}, {.out = temp.file("x.gguf"), .types = {DType::kF32, {}, {}}});
  });
  const auto folder = message_of([&] { convert_to_folder(*file, {}, {.out = temp.file("folder")}); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old);
  EXPECT_THAT(gguf, HasSubstr("x.gguf' failed after"));
  EXPECT_THAT(gguf, HasSubstr("the incomplete file was removed"));
  EXPECT_THAT(folder, HasSubstr("model.safetensors' failed after"));
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(temp.path())) left.push_back(entry.path().filename());
  EXPECT_THAT(left, ElementsAre("a.gguf"));
}

TEST(Output, CancelledWorkLeavesNothingBehind) {
  const TempFolder temp;
  testing::write_tiny_gguf(temp.file("a.gguf"), {});
  const auto file = ModelFile::open(temp.file("a.gguf"));
  WriteOptions cancel{1, [](double done) {
                        if (done > 0.5) fail("enough");
                      }};
  EXPECT_EQ(message_of([&] { quantize_model(*file, {}, {.out = temp.file("x.gguf"), .write = cancel}); }), "enough");
  EXPECT_FALSE(fs::exists(temp.file("x.gguf")) || fs::exists(temp.file("x.gguf.partial")));
}

TEST(Output, FoldersInTheWayAreRefused) {
  const TempFolder temp;
  testing::write_tiny_gguf(temp.file("a.gguf"), {});
  const auto file = ModelFile::open(temp.file("a.gguf"));
  EXPECT_THAT(message_of([&] { convert_to_folder(*file, {}, {.out = temp.path()}); }),
              HasSubstr("is not empty; --force"));
  EXPECT_THAT(message_of([&] { convert_to_folder(*file, {}, {.out = temp.file("a.gguf")}); }),
              HasSubstr("is no folder"));
  EXPECT_THAT(message_of([&] { convert_to_folder(*file, {}, {.out = temp.file("f"), .type = DType::kQ8_0}); }),
              HasSubstr("specextend quantize"));
  EXPECT_FALSE(fs::exists(temp.file("f")));
}

}  // namespace
}  // namespace sx
