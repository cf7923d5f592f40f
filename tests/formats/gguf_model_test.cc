// Whole GGUF models: metadata to configuration, tensor checks, shards, vocabulary.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>

#include "expect_error.h"
#include "formats/family.h"
#include "formats/gguf_model.h"
#include "formats/model_file.h"
#include "support/model_writer.h"
#include "tensor/blocks.h"

namespace sx::testing {
namespace {

constexpr const char* kName = "model.gguf";

// A tiny model whose keys can be replaced: `change` gets a copy of the entries' writer before the tensors are added.
struct Variant {
  TinySpec spec;
  std::vector<std::string> without;  // keys left out
  std::vector<std::string> without_tensors;
  std::function<void(GgufWriter&)> extra = [](GgufWriter&) {};

  Bytes bytes() const {
    const Bytes original = tiny_gguf(spec).bytes();
    const GgufFile file(original, "original");
    GgufWriter out;
    for (const auto& entry : file.entries()) {
      if (std::find(without.begin(), without.end(), entry.key) != without.end()) continue;
      copy(entry, out);
    }
    for (const auto& entry : file.tensors()) {
      if (std::find(without_tensors.begin(), without_tensors.end(), entry.name) != without_tensors.end()) continue;
      const Tensor& tensor = entry.tensor;
      std::vector<int64_t> shape(tensor.shape.begin(), tensor.shape.begin() + tensor.rank);
      out.add_tensor(entry.name, tensor.type, shape, Bytes(tensor.data, tensor.data + tensor.bytes()));
    }
    extra(out);
    return out.bytes();
  }

  static void copy(const GgufEntry& entry, GgufWriter& out) {
    const GgufValue& value = entry.value;
    if (const auto text = value.as_string()) return out.add_string(entry.key, *text);
    if (const auto flag = value.as_bool()) return out.add_bool(entry.key, *flag);
    if (value.type == GgufType::kF32) return out.add_f32(entry.key, static_cast<float>(*value.as_double()));
    if (const auto* array = value.as_array()) {
      if (array->element == GgufType::kString) {
        return out.add_strings(entry.key, std::vector<std::string>(array->strings.begin(), array->strings.end()));
      }
      std::vector<int32_t> numbers;
      for (size_t i = 0; i < array->count; ++i) numbers.push_back(static_cast<int32_t>(gguf_integer(*array, i)));
      return out.add_i32s(entry.key, numbers);
    }
    out.add_u32(entry.key, static_cast<uint32_t>(*value.as_int()));
  }
};

void check(const Bytes& bytes) { check_gguf_model(bytes, kName); }

// The model with key `key` replaced by whatever `add` writes is refused with a message that names the file and `parts`.
void refuse_with(const std::string& key, const std::function<void(GgufWriter&)>& add,
                 std::initializer_list<std::string> parts) {
  Variant variant;
  variant.without = {key};
  variant.extra = add;
  const Bytes bytes = variant.bytes();
  expect_error([&] { check(bytes); }, {kName}, key);
  expect_error([&] { check(bytes); }, parts, key);
}

void refuse_u32(const std::string& key, uint32_t value, std::initializer_list<std::string> parts) {
  refuse_with(
      key, [&](GgufWriter& out) { out.add_u32(key, value); }, parts);
}

void refuse_f32(const std::string& key, float value, std::initializer_list<std::string> parts) {
  refuse_with(
      key, [&](GgufWriter& out) { out.add_f32(key, value); }, parts);
}

void expect_same(const ModelConfig& found, const ModelConfig& expected) {
  EXPECT_STREQ(found.family->gguf, expected.family->gguf);
  EXPECT_EQ(found.layers, expected.layers);
  EXPECT_EQ(found.width, expected.width);
  EXPECT_EQ(found.heads, expected.heads);
  EXPECT_EQ(found.kv_heads, expected.kv_heads);
  EXPECT_EQ(found.head_dim, expected.head_dim);
  EXPECT_EQ(found.ffn, expected.ffn);
  EXPECT_EQ(found.vocab, expected.vocab);
  EXPECT_EQ(found.context, expected.context);
  EXPECT_EQ(found.norm_eps, expected.norm_eps);
  EXPECT_EQ(found.window, expected.window);
  EXPECT_EQ(windowed_layers(found), windowed_layers(expected));
  EXPECT_EQ(found.tied_head, expected.tied_head);
  EXPECT_EQ(found.qkv_bias, expected.qkv_bias);
  EXPECT_EQ(found.out_bias, expected.out_bias);
  EXPECT_EQ(found.mlp_bias, expected.mlp_bias);
  EXPECT_EQ(found.qk_norm, expected.qk_norm);
  EXPECT_EQ(found.rope.dims, expected.rope.dims);
  EXPECT_EQ(found.rope.base, expected.rope.base);
}

std::vector<TinySpec> specs() {
  std::vector<TinySpec> out(6);
  out[1].arch = "qwen2";
  out[1].tied = true;
  out[2].arch = "qwen3";
  out[2].head_dim = 32;
  out[2].windowed_layers = {1, 0};
  out[2].window = 16;
  out[3].arch = "mistral";
  out[3].window = 64;
  out[3].weights = DType::kQ4_1;
  out[3].embedding = DType::kQ8_0;
  out[4].qkv_bias = out[4].out_bias = out[4].mlp_bias = true;
  out[4].weights = DType::kBF16;
  out[5].width = out[5].ffn = 256;
  out[5].heads = 8;
  out[5].weights = DType::kQ4_K;
  return out;
}

TEST(GgufModel, ConfigurationIsWhatWasWritten) {
  const TempFolder folder;
  for (const auto& spec : specs()) {
    const std::string path = folder.file("model.gguf");
    write_tiny_gguf(path, spec);
    const auto model = ModelFile::open(path);
    expect_same(model->config(), tiny_config(spec));
    EXPECT_EQ(model->format(), "GGUF v3");
    EXPECT_EQ(model->config().rope.style,
              model->config().arch_name == "llama" ? RopeStyle::kInterleaved : RopeStyle::kHalves);
    EXPECT_EQ(model->tokenizer().tokens, tiny_tokens(spec.vocab));
    EXPECT_EQ(model->tokenizer().merges, tiny_merges(spec.vocab));
    EXPECT_EQ(model->tokenizer().types[0], TokenType::kControl);
    EXPECT_EQ(model->tokenizer().bos, 0);
    EXPECT_EQ(model->tokenizer().unk, -1);
    EXPECT_EQ(model->tokenizer().add_bos, 0);
    EXPECT_EQ(model->tokenizer().add_eos, -1);
    EXPECT_EQ(model->get("blk.1.ffn_down.weight", {spec.width, spec.ffn}).type, spec.weights);
    expect_error([&] { model->get("blk.1.ffn_down.weight", {spec.width, spec.ffn + 1}); }, {path, "ffn_down"});
    expect_error([&] { model->get("blk.9.ffn_down.weight"); }, {path, "blk.9.ffn_down.weight"});
    EXPECT_EQ(model->find("nothing"), nullptr);
    EXPECT_FALSE(model->metadata().empty());
    for (const auto& entry : model->tensors()) model->release(entry.tensor);
  }
}

TEST(GgufModel, ValuesAreTheWrittenOnes) {
  const TempFolder folder;
  TinySpec spec;
  spec.arch = "qwen2";
  write_tiny_gguf(folder.file(kName), spec);
  const auto model = ModelFile::open(folder.file(kName));
  for (const auto& tensor : tiny_tensors(spec)) {
    const Tensor& found = model->get(tensor.name);
    ASSERT_EQ(static_cast<size_t>(found.elements()), tensor.values.size());
    EXPECT_EQ(0, std::memcmp(found.data, tensor.values.data(), found.bytes())) << tensor.name;
  }
}

TEST(GgufModel, RopeScaling) {
  const TempFolder folder;
  TinySpec spec;
  spec.scaling = RopeScaling::kLinear;
  spec.factor = 8;
  write_tiny_gguf(folder.file(kName), spec);
  EXPECT_EQ(ModelFile::open(folder.file(kName))->config().rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(ModelFile::open(folder.file(kName))->config().rope.factor, 8);
  spec.scaling = RopeScaling::kYarn;
  spec.original_context = 512;
  write_tiny_gguf(folder.file(kName), spec);
  const auto yarn = ModelFile::open(folder.file(kName))->config().rope;
  EXPECT_EQ(yarn.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn.original_context, 512);
  EXPECT_EQ(yarn.attention_factor, 0);
  spec.scaling = RopeScaling::kLlama3;
  write_tiny_gguf(folder.file(kName), spec);
  const auto llama3 = ModelFile::open(folder.file(kName))->config().rope;
  EXPECT_EQ(llama3.scaling, RopeScaling::kNone);
  ASSERT_EQ(llama3.factors.size(), 8u);
  EXPECT_EQ(llama3.factors.front(), 1.0f);
  EXPECT_EQ(llama3.factors.back(), 8.0f);

  const auto rope_of = [&](const std::function<void(GgufWriter&)>& extra) {
    Variant variant;
    variant.extra = extra;
    write_file(folder.file(kName), variant.bytes());
    return ModelFile::open(folder.file(kName))->config().rope;
  };
  const auto old = rope_of([](GgufWriter& out) { out.add_f32("llama.rope.scale_linear", 4); });
  EXPECT_EQ(old.scaling, RopeScaling::kLinear);
  EXPECT_EQ(old.factor, 4);
  const auto extra = rope_of([](GgufWriter& out) {
    out.add_string("llama.rope.scaling.type", "yarn");
    out.add_f32("llama.rope.scaling.factor", 4);
    out.add_f32("llama.rope.scaling.attn_factor", 2);
    out.add_f32("llama.rope.scaling.yarn_beta_fast", 16);
  });
  EXPECT_DOUBLE_EQ(extra.attention_factor, 2 * (0.1 * std::log(4.0) + 1));
  EXPECT_EQ(extra.beta_fast, 16);
  // What converters write for a folder's attention_factor and mscale_all_dim.
  const auto scaled = [&](const char* key, float value) {
    return rope_of([&](GgufWriter& out) {
             out.add_string("llama.rope.scaling.type", "yarn");
             out.add_f32("llama.rope.scaling.factor", 4);
             out.add_f32(std::string("llama.rope.scaling.") + key, value);
           })
        .attention_factor;
  };
  EXPECT_EQ(scaled("yarn_attn_factor", 1.25f), 1.25);
  EXPECT_EQ(scaled("yarn_attn_factor", 1), 1);
  EXPECT_EQ(scaled("yarn_log_multiplier", 1), 1);
  EXPECT_DOUBLE_EQ(scaled("yarn_log_multiplier", 0.5), (0.1 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1));
  EXPECT_THROW(scaled("yarn_attn_factor", -1), Error);
}

TEST(GgufModel, PerLayerArraysMustBeUniform) {
  Variant variant;
  variant.without = {"llama.attention.head_count_kv"};
  const int32_t same[] = {2, 2}, differing[] = {2, 4};
  variant.extra = [&](GgufWriter& out) { out.add_i32s("llama.attention.head_count_kv", same); };
  EXPECT_NO_THROW(check(variant.bytes()));
  refuse_with("llama.attention.head_count_kv",
              [&](GgufWriter& out) { out.add_i32s("llama.attention.head_count_kv", differing); },
              {"head_count_kv", "differs"});
  refuse_with("llama.attention.head_count_kv",
              [&](GgufWriter& out) { out.add_i32s("llama.attention.head_count_kv", {}); }, {"head_count_kv"});
}

TEST(GgufModel, RefusesMissingKeys) {
  for (const char* key :
       {"general.architecture", "llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
        "llama.attention.head_count", "llama.context_length", "llama.attention.layer_norm_rms_epsilon"}) {
    refuse_with(key, [](GgufWriter&) {}, {key, "missing"});
  }
}

TEST(GgufModel, RefusesEveryNumberOutOfRange) {
  for (const char* key :
       {"llama.block_count", "llama.embedding_length", "llama.feed_forward_length", "llama.vocab_size",
        "llama.attention.head_count", "llama.attention.head_count_kv", "llama.context_length",
        "llama.attention.key_length", "llama.attention.value_length", "llama.rope.dimension_count"}) {
    refuse_u32(key, 0, {});
    refuse_u32(key, 0xffffffff, {key});
    refuse_u32(key, 0x7fffffff, {});
    refuse_with(key, [&](GgufWriter& out) { out.add_string(key, "7"); }, {key});
    refuse_with(key, [&](GgufWriter& out) { out.add_f32(key, 7); }, {key});
    refuse_with(key, [&](GgufWriter& out) { out.add_i32(key, -1); }, {key});
  }
  refuse_u32("llama.block_count", 1025, {"layers", "1025"});
  refuse_u32("llama.attention.head_count_kv", 3, {"KV heads"});
  refuse_u32("llama.attention.key_length", 18, {"18"});
  refuse_u32("llama.rope.dimension_count", 15, {"15"});
  refuse_u32("llama.rope.dimension_count", 18, {"18"});
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const float value : {0.0f, 1.0f, -1e-5f, nan, infinity}) {
    refuse_f32("llama.attention.layer_norm_rms_epsilon", value, {"epsilon"});
  }
  for (const float value : {0.0f, 1.0f, -1.0f, nan, infinity}) refuse_f32("llama.rope.freq_base", value, {"base"});
  for (const float value : {-1.0f, nan, infinity, 1e9f}) refuse_f32("llama.rope.scaling.factor", value, {"factor"});
  refuse_u32("llama.attention.sliding_window", 0xffffffff, {"sliding_window"});
}

TEST(GgufModel, RefusesForeignKinds) {
  refuse_with("general.architecture", [](GgufWriter& out) { out.add_string("general.architecture", "mamba"); },
              {"mamba", "state-space"});
  refuse_with("general.architecture", [](GgufWriter& out) { out.add_string("general.architecture", "abacus"); },
              {"abacus", "llama", "gemma3"});
  refuse_u32("llama.expert_count", 8, {"llama.expert_used_count", "missing"});
  refuse_with("", [](GgufWriter& out) { out.add_string("llama.rope.scaling.type", "longrope"); }, {"longrope"});
  refuse_with("", [](GgufWriter& out) { out.add_string("llama.rope.scaling.type", "yarn"); }, {"factor", "missing"});
  refuse_with("",
              [](GgufWriter& out) {
                out.add_u32("llama.attention.sliding_window", 4);
                out.add_u32("llama.attention.sliding_window_pattern", 4);
              },
              {"pattern"});
}

TEST(GgufModel, RefusesBadTokenIdsAndLists) {
  for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.padding_token_id"}) {
    refuse_u32(key, 320, {key, "320"});
    refuse_u32(key, 0x80000000, {key});
  }
  const float scores[] = {1, 2};
  const int32_t few[] = {1, 1};
  const std::vector<int32_t> odd(320, 7);
  refuse_with("", [&](GgufWriter& out) { out.add_f32s("tokenizer.ggml.scores", scores); }, {"2 token scores"});
  refuse_with("", [&](GgufWriter& out) { out.add_i32s("tokenizer.ggml.scores", few); }, {"tokenizer.ggml.scores"});
  refuse_with("tokenizer.ggml.token_type", [&](GgufWriter& out) { out.add_i32s("tokenizer.ggml.token_type", few); },
              {"2 token types"});
  refuse_with("tokenizer.ggml.token_type", [&](GgufWriter& out) { out.add_i32s("tokenizer.ggml.token_type", odd); },
              {"tokenizer.ggml.token_type", "type 7"});
  refuse_with("tokenizer.ggml.tokens", [&](GgufWriter& out) { out.add_i32s("tokenizer.ggml.tokens", few); },
              {"strings"});
  const std::vector<std::string> many(321, "x");
  refuse_with("tokenizer.ggml.tokens", [&](GgufWriter& out) { out.add_strings("tokenizer.ggml.tokens", many); },
              {"321"});
  Variant none;  // "no such token" is spelled -1 by some writers
  none.without = {"tokenizer.ggml.padding_token_id"};
  none.extra = [](GgufWriter& out) { out.add_i32("tokenizer.ggml.padding_token_id", -1); };
  EXPECT_NO_THROW(check(none.bytes()));
}

TEST(GgufModel, RefusesEveryMissingTensor) {
  TinySpec spec;
  spec.arch = "qwen2";
  spec.layers = 1;
  for (const auto& tensor : tiny_tensors(spec)) {
    if (tensor.name == "output.weight") continue;  // then the head is tied
    Variant variant{spec, {}, {tensor.name}};
    const Bytes bytes = variant.bytes();
    expect_error([&] { check(bytes); }, {kName, tensor.name, "missing"});
  }
  Variant tied{spec, {}, {"output.weight"}};
  EXPECT_NO_THROW(check(tied.bytes()));
}

TEST(GgufModel, RefusesEveryMisshapenOrForeignTensor) {
  const TinySpec spec;
  for (const auto& tensor : tiny_tensors(spec)) {
    if (tensor.name == "token_embd.weight") continue;
    Variant variant{spec, {}, {tensor.name}};
    std::vector<int64_t> shape = tensor.shape;
    shape[0] += 1;
    int64_t count = shape.size() == 2 ? shape[0] * shape[1] : shape[0];
    variant.extra = [&](GgufWriter& out) {
      out.add_tensor(tensor.name, DType::kF32, shape, Bytes(static_cast<size_t>(count) * 4));
    };
    Bytes bytes = variant.bytes();
    expect_error([&] { check(bytes); }, {kName, tensor.name, "shape", "expected"});
    count = count / shape[0] * tensor.shape[0];
    variant.extra = [&](GgufWriter& out) {
      out.add_tensor(tensor.name, DType::kI32, tensor.shape, Bytes(static_cast<size_t>(count) * 4));
    };
    bytes = variant.bytes();
    expect_error([&] { check(bytes); }, {kName, tensor.name, "I32"});
  }
  refuse_with("", [](GgufWriter& out) { out.add_tensor("blk.0.odd.weight", DType::kF32, {4}, Bytes(16)); },
              {"blk.0.odd.weight", "not part"});
  refuse_with("", [](GgufWriter& out) { out.add_tensor("blk.1.attn_q.bias", DType::kF32, {64}, Bytes(256)); },
              {"blk.1.attn_q.bias"});
  refuse_with("", [](GgufWriter& out) { out.add_tensor("rope_freqs.weight", DType::kF32, {4}, Bytes(16)); },
              {"rope_freqs.weight", "[8]"});
  refuse_with("", [](GgufWriter& out) { out.add_tensor("rope_freqs.weight", DType::kF32, {8}, Bytes(32)); },
              {"divisor"});  // zeros
  Variant norm{spec, {}, {"output_norm.weight"}};
  norm.extra = [](GgufWriter& out) {
    out.add_tensor("output_norm.weight", DType::kQ8_0, {64}, encode(DType::kQ8_0, std::vector<float>(64, 1.0f), 0));
  };
  const Bytes bytes = norm.bytes();
  expect_error([&] { check(bytes); }, {"output_norm.weight", "Q8_0", "F32"});
}

class Shards : public ::testing::Test {
 protected:
  static constexpr int kCount = 3;
  std::string name(int i) const { return folder_.file("m-0000" + std::to_string(i + 1) + "-of-00003.gguf"); }

  // Writes the model over three files; `change` may alter shard i before it is written.
  void write(
      const std::function<void(int, GgufWriter&)>& change = [](int, GgufWriter&) {}, int number_shift = 0) {
    const Bytes original = tiny_gguf(TinySpec()).bytes();
    const GgufFile file(original, "original");
    for (int i = 0; i < kCount; ++i) {
      GgufWriter out;
      if (i == 0) {
        for (const auto& entry : file.entries()) Variant::copy(entry, out);
      }
      out.add_u16("split.no", static_cast<uint16_t>(i + (i ? number_shift : 0)));
      out.add_u16("split.count", kCount);
      out.add_i32("split.tensors.count", static_cast<int32_t>(file.tensors().size()));
      for (size_t t = static_cast<size_t>(i); t < file.tensors().size(); t += kCount) {
        const Tensor& tensor = file.tensors()[t].tensor;
        std::vector<int64_t> shape(tensor.shape.begin(), tensor.shape.begin() + tensor.rank);
        out.add_tensor(file.tensors()[t].name, tensor.type, shape, Bytes(tensor.data, tensor.data + tensor.bytes()));
      }
      change(i, out);
      write_file(name(i), out.bytes());
    }
  }

  TempFolder folder_;
};

TEST_F(Shards, OpenTogether) {
  write();
  const auto model = ModelFile::open(name(0));
  EXPECT_EQ(model->tensors().size(), tiny_tensors(TinySpec()).size());
  EXPECT_EQ(model->find("blk.0.attn_norm.weight")->file, name(1));
  for (const auto& entry : model->tensors()) model->release(entry.tensor);
}

TEST_F(Shards, RefusesIncompleteOrMixedSets) {
  write();
  expect_error([&] { ModelFile::open(name(1)); }, {name(1), "first"});
  std::filesystem::remove(name(2));
  expect_error([&] { ModelFile::open(name(0)); }, {name(2)});
  write([](int, GgufWriter&) {}, 1);
  expect_error([&] { ModelFile::open(name(0)); }, {name(1), "split.no"});
  write([](int i, GgufWriter& out) {
    if (i == 2) out.add_tensor("extra", DType::kF32, {1}, Bytes(4));
  });
  expect_error([&] { ModelFile::open(name(0)); }, {name(0), "split.tensors.count"});
  write();
  const std::string other = folder_.file("other.gguf");
  std::filesystem::rename(name(0), other);
  expect_error([&] { ModelFile::open(other); }, {other, "named"});
}

TEST(GgufModel, OpensTheDefaultModel) {
  const char* home = std::getenv("HOME");
  const auto path =
      std::filesystem::path(home ? home : "") / ".cache/specextend/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
  const auto model = ModelFile::open(path.string());
  const ModelConfig& config = model->config();
  EXPECT_EQ(config.layers, 30);
  EXPECT_EQ(config.width, 576);
  EXPECT_EQ(config.heads, 9);
  EXPECT_EQ(config.kv_heads, 3);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.vocab, 49152);
  EXPECT_EQ(config.context, 8192);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(model->tensors().size(), 272u);
  EXPECT_EQ(model->tokenizer().pre, "smollm");
  EXPECT_EQ(model->tokenizer().eos, 2);
  EXPECT_EQ(model->tokenizer().merges.size(), 48900u);
  const Tensor& embedding = model->get("token_embd.weight", {49152, 576});
  std::vector<float> row(576);
  dequantise(embedding.type, embedding.row(1000), 576, row.data());
  double sum = 0;
  for (const float value : row) sum += static_cast<double>(value) * value;
  EXPECT_GT(sum, 0.1);
  EXPECT_LT(sum, 1000);
}

}  // namespace
}  // namespace sx::testing
