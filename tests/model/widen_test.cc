// The wide twin of tiny models: the same argmax and nearly the same logits as the model it embeds, for every way in
// which a shape can grow; and what cannot be embedded is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "bench/widen/widen.h"
#include "convert_fixture.h"
#include "model/convert/convert.h"

namespace sx {
namespace {

using ::testing::HasSubstr;
using testing::TempFolder;
using testing::TinySpec;
namespace fs = std::filesystem;

struct Case {
  const char* name;
  TinySpec spec;
  WideShape shape;
  bool folder = false;  // source in Hugging Face form
};

std::vector<Case> cases() {
  std::vector<Case> out;
  const auto add = [&](const char* name, WideShape shape, auto change, bool folder = false) {
    TinySpec spec;
    spec.gain = 2;
    change(spec);
    out.push_back({name, spec, shape, folder});
  };
  const auto plain = [](TinySpec&) {};
  add("same", {}, plain);
  add("width", {.width = 160}, plain);
  add("ffn", {.ffn = 320}, plain);
  add("layers", {.layers = 5}, plain);
  add("heads", {.heads = 8}, plain);
  add("kv_heads", {.heads = 12, .kv_heads = 4}, plain);
  add("head_dim", {.head_dim = 64}, plain);
  add("head_dim_from_folder", {.head_dim = 32}, plain, true);
  add("all", {192, 4, 15, 5, 48, 256}, plain);
  add("all_from_folder", {192, 4, 15, 5, 48, 256}, plain, true);
  add("tied", {128, 3, 16, 4, 32, 160}, [](TinySpec& s) { s.tied = true; });
  add("more_groups", {128, 3, 24, 4, 32, 160}, [](TinySpec& s) { s.heads = 6, s.kv_heads = 2, s.width = 96; });
  add("biases", {128, 3, 16, 4, 32, 160}, [](TinySpec& s) { s.qkv_bias = s.out_bias = s.mlp_bias = true; });
  add("qwen2", {128, 3, 16, 4, 32, 160}, [](TinySpec& s) { s.arch = "qwen2"; });
  add("linear", {.head_dim = 32}, [](TinySpec& s) { s.scaling = RopeScaling::kLinear, s.factor = 4; });
  add("llama3", {.width = 128, .head_dim = 32},
      [](TinySpec& s) { s.scaling = RopeScaling::kLlama3, s.factor = 8, s.original_context = 256; });
  add(
      "llama3_from_folder", {.width = 128, .head_dim = 32},
      [](TinySpec& s) { s.scaling = RopeScaling::kLlama3, s.factor = 8, s.original_context = 256; }, true);
  add("yarn", {.width = 128, .head_dim = 64},
      [](TinySpec& s) { s.scaling = RopeScaling::kYarn, s.factor = 4, s.original_context = 512; });
  add("window", {.width = 128, .layers = 4}, [](TinySpec& s) { s.window = 16, s.windowed_layers = {1, 0}; });
  return out;
}

class Widen : public ::testing::TestWithParam<Case> {};

TEST_P(Widen, ComputesTheSameFunction) {
  const TempFolder temp;
  const Case& c = GetParam();
  const std::string source = temp.file(c.folder ? "folder" : "small.gguf"), twin = temp.file("wide.gguf");
  if (c.folder) testing::write_tiny_hf(source, c.spec);
  else testing::write_tiny_gguf(source, c.spec);
  const auto report = widen_model(*ModelFile::open(source), {}, c.shape, {.out = twin, .types = {DType::kF32}});
  EXPECT_EQ(report.bytes, fs::file_size(twin));
  const auto made = ModelFile::open(twin);
  const ModelConfig& config = made->config();
  const auto size = [](int wanted, int old) { return wanted ? wanted : old; };
  EXPECT_EQ(config.width, size(c.shape.width, c.spec.width));
  EXPECT_EQ(config.layers, size(c.shape.layers, c.spec.layers));
  EXPECT_EQ(config.heads, size(c.shape.heads, c.spec.heads));
  EXPECT_EQ(config.ffn, size(c.shape.ffn, c.spec.ffn));

  const auto text = random_text(96, c.spec.vocab, 11);
  const auto before = logits_of(source, text), after = logits_of(twin, text);
  EXPECT_LT(largest_difference(before, after), 1e-4);
  const auto vocab = ptrdiff_t(c.spec.vocab);
  for (ptrdiff_t i = 0; i < ptrdiff_t(text.size()); ++i) {
    const auto argmax = [&](const std::vector<float>& l) {
      return std::max_element(&l[size_t(i * vocab)], &l[size_t(i * vocab)] + vocab) - &l[size_t(i * vocab)];
    };
    EXPECT_EQ(argmax(before), argmax(after)) << "position " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Widen, ::testing::ValuesIn(cases()),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(WidenTypes, QuantisedSourcesAndTargets) {
  const TempFolder temp;
  TinySpec spec;
  spec.weights = DType::kQ4_1, spec.embedding = DType::kQ8_0, spec.tied = true, spec.gain = 2;
  testing::write_tiny_gguf(temp.file("small.gguf"), spec);
  const auto file = ModelFile::open(temp.file("small.gguf"));
  const auto text = random_text(48, spec.vocab, 12);
  convert_to_folder(*file, {}, {.out = temp.file("exact"), .type = DType::kF32});
  const auto exact = logits_of(temp.file("exact"), text);
  const WideShape shape{256, 3, 16, 4, 32, 512};
  for (const auto& [type, near] :
       {std::pair{DType::kF32, 1e-4}, {DType::kBF16, 0.03}, {DType::kQ8_0, 0.06}, {DType::kQ4_0, 0.5}}) {
    const std::string path = temp.file(std::string(dtype_name(type)) + ".gguf");
    widen_model(*file, file->tokenizer(), shape, {.out = path, .types = {type}});
    const auto made = ModelFile::open(path);
    EXPECT_EQ(made->get("blk.2.ffn_up.weight").type, type);
    EXPECT_EQ(made->tokenizer().tokens, file->tokenizer().tokens);
    EXPECT_LT(relative_difference(exact, logits_of(path, text)), near) << dtype_name(type);
  }
}

TEST(WidenFiles, ZerosAreHolesAndADryRunWritesNothing) {
  const TempFolder temp;
  testing::write_tiny_gguf(temp.file("small.gguf"), {});
  const auto file = ModelFile::open(temp.file("small.gguf"));
  const WideShape shape{2048, 8, 32, 8, 64, 8192};
  const auto planned =
      widen_model(*file, {}, shape, {.out = temp.file("wide.gguf"), .types = {DType::kBF16}, .dry_run = true});
  EXPECT_FALSE(fs::exists(temp.file("wide.gguf")));
  widen_model(*file, {}, shape, {.out = temp.file("wide.gguf"), .types = {DType::kBF16}});
  EXPECT_EQ(planned.bytes, fs::file_size(temp.file("wide.gguf")));
  EXPECT_GT(planned.bytes, 900'000'000u);
  struct stat info {};
  ASSERT_EQ(::stat(temp.file("wide.gguf").c_str(), &info), 0);
  EXPECT_LT(info.st_blocks * 512, 40'000'000);
}

TEST(WidenFiles, TooLargeForTheDiskIsSaidBeforeWriting) {
  const TempFolder temp;
  testing::write_tiny_gguf(temp.file("small.gguf"), {});
  const WideShape huge{131072, 1024, 4096, 2, 16, 1 << 20};
  EXPECT_THAT(message_of([&] {
                widen_model(*ModelFile::open(temp.file("small.gguf")), {}, huge,
                            {.out = temp.file("x.gguf"), .types = {DType::kBF16}});
              }),
              HasSubstr("and the disk has"));
  EXPECT_FALSE(fs::exists(temp.file("x.gguf")) || fs::exists(temp.file("x.gguf.partial")));
}

TEST(WidenRefusals, NameWhatDoesNotFit) {
  const TempFolder temp;
  const auto refusal = [&](TinySpec spec, WideShape shape) {
    testing::write_tiny_hf(temp.file("folder"), spec);
    return message_of(
        [&] { widen_model(*ModelFile::open(temp.file("folder")), {}, shape, {.out = temp.file("x.gguf")}); });
  };
  EXPECT_THAT(refusal({}, {.width = 32}), HasSubstr("the width would shrink from 64 to 32"));
  EXPECT_THAT(refusal({}, {.layers = 1}), HasSubstr("number of layers"));
  EXPECT_THAT(refusal({}, {.ffn = 64}), HasSubstr("feed-forward length"));
  EXPECT_THAT(refusal({}, {.head_dim = 24}), HasSubstr("heads of 16 do not embed in heads of 24"));
  EXPECT_THAT(refusal({}, {.heads = 4, .kv_heads = 4}), HasSubstr("only 1 would in the twin"));
  EXPECT_THAT(refusal({}, {.heads = 5}), HasSubstr("not a multiple"));
  TinySpec qwen3;
  qwen3.arch = "qwen3";
  EXPECT_THAT(refusal(qwen3, {.width = 128}), HasSubstr("norms of q and k"));
  TinySpec dynamic;
  dynamic.scaling = RopeScaling::kDynamic, dynamic.factor = 2;
  EXPECT_THAT(refusal(dynamic, {.width = 128}), HasSubstr("dynamic RoPE scaling"));
  EXPECT_THAT(message_of([] { named_shape("llama-9b"); }), HasSubstr("llama-8b"));
  EXPECT_EQ(named_shape("llama-8b").ffn, 14336);
}

}  // namespace
}  // namespace sx
