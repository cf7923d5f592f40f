// Mixtures as whole models: trees against plain decoding, and the forms in which files hold the experts against each
// other, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "backend/registry.h"
#include "model/convert/convert.h"
#include "model/convert/quantize.h"
#include "model/expert_weights.h"
#include "model/model.h"
#include "model/tree_invariance.h"
#include "support/far_backend.h"
#include "support/model_writer.h"
#include "tensor/blocks.h"
#include "tensor/quantise_search.h"

namespace sx {
namespace {

using testing::Bytes;
using testing::GgufWriter;
using testing::SafetensorsWriter;
using testing::TempFolder;
using testing::TreeSubject;

const char* const kMixtures[] = {"qwen3moe", "mixtral", "olmoe", "gpt-oss"};

std::string golden(const std::string& name) { return std::string(SX_GOLDEN_DIR) + "/" + name; }

TEST(Mixture, EveryNodeOfATreeEqualsItsPathDecodedPlainly) {
  unsigned seed = 1;
  for (const char* name : kMixtures) {
    for (const cpu::Isa isa : cpu::available_isas()) {
      const TreeSubject subject = {cpu::isa_name(isa), [isa](int threads) { return make_cpu_backend({threads, isa}); }};
      testing::check_tree(golden(name), subject, DType::kBF16, {63, 20}, 17, ++seed);
      testing::check_grown(golden(name), subject, DType::kF16, {30, 64}, 20, true, ++seed);
    }
    const TreeSubject far = {"far", [](int threads) {
                               return std::make_unique<testing::FarBackend>(make_cpu_backend({threads, std::nullopt}));
                             }};
    testing::check_tree(golden(name), far, DType::kBF16, {70, 3}, 9, ++seed);
  }
}

std::vector<float> logits_of(const std::string& path) {
  const auto backend = make_cpu_backend({2, std::nullopt});
  ModelOptions options;
  options.max_rows = options.max_outputs = 60, options.context = 128;
  const auto model = Model::load(ModelFile::open(path), *backend, options);
  const auto kv = backend->make_kv(model->kv_geometry(1, 128, DType::kF32));
  std::vector<Token> tokens;
  std::vector<int32_t> positions, outputs;
  for (int i = 0; i < 60; ++i) tokens.push_back(i * 37 % 250), positions.push_back(i), outputs.push_back(i);
  const SeqRows seq{0, 60, 0, 0, nullptr, 0};
  const float* logits = model->forward({tokens, positions, {&seq, 1}, outputs}, *kv).logits;
  return {logits, logits + 60 * size_t(model->config().vocab)};
}

// Keys of a GGUF file of the model, as llama.cpp's converter writes them.
GgufWriter keys_of(const ModelConfig& c, const std::string& arch) {
  GgufWriter out;
  const auto key = [&](const char* name) { return arch + "." + name; };
  out.add_string("general.architecture", arch);
  out.add_u32(key("block_count"), uint32_t(c.layers));
  out.add_u32(key("context_length"), uint32_t(c.context));
  out.add_u32(key("embedding_length"), uint32_t(c.width));
  out.add_u32(key("feed_forward_length"), uint32_t(c.ffn));
  out.add_u32(key("expert_feed_forward_length"), uint32_t(c.ffn));
  out.add_u32(key("expert_count"), uint32_t(c.experts));
  out.add_u32(key("expert_used_count"), uint32_t(c.experts_used));
  out.add_u32(key("attention.head_count"), uint32_t(c.heads));
  out.add_u32(key("attention.head_count_kv"), uint32_t(c.kv_heads));
  out.add_u32(key("attention.key_length"), uint32_t(c.head_dim));
  out.add_u32(key("attention.value_length"), uint32_t(c.head_dim));
  out.add_f32(key("attention.layer_norm_rms_epsilon"), c.norm_eps);
  out.add_f32(key("rope.freq_base"), float(c.rope.base));
  if (c.window > 0) out.add_u32(key("attention.sliding_window"), uint32_t(c.window));
  if (c.rope.scaling == RopeScaling::kYarn) {
    out.add_string(key("rope.scaling.type"), "yarn");
    out.add_f32(key("rope.scaling.factor"), float(c.rope.factor));
    out.add_u32(key("rope.scaling.original_context_length"), uint32_t(c.rope.original_context));
  }
  const auto tokens = testing::tiny_tokens(c.vocab);
  out.add_string("tokenizer.ggml.model", "gpt2");
  out.add_strings("tokenizer.ggml.tokens", tokens);
  out.add_strings("tokenizer.ggml.merges", testing::tiny_merges(c.vocab));
  return out;
}

void add(GgufWriter& out, const std::string& name, const Tensor& t) {
  out.add_tensor(name, t.type, {t.shape.begin(), t.shape.begin() + t.rank}, {t.data, t.data + t.bytes()});
}

void add_floats(GgufWriter& out, const std::string& name, std::vector<int64_t> shape,
                const std::vector<float>& values) {
  out.add_tensor(name, DType::kF32, std::move(shape), testing::encode(DType::kF32, values, 0));
}

// The folder's model as a GGUF file with stacked experts.
void write_gguf(const std::string& path, const std::string& folder, const std::string& arch) {
  const auto file = ModelFile::open(folder);
  const ModelConfig& c = file->config();
  GgufWriter out = keys_of(c, arch);
  for (const NamedTensor& t : file->tensors()) {
    const bool of_experts = t.name.find("_exps.") != std::string::npos ||
                            (t.name.find(".ffn_") != std::string::npos && t.name.find("inp") == std::string::npos &&
                             t.name.find("norm") == std::string::npos);
    if (of_experts) continue;
    std::string name = t.name;
    if (const size_t at = name.find("ffn_norm"); arch == "gpt-oss" && at != std::string::npos)
      name.replace(at, 8, "post_attention_norm");
    add(out, name, t.tensor);
  }
  for (int i = 0; i < c.layers; ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    const ExpertStacks stacks = expert_stacks(*file, prefix, c.layer(i));
    add(out, prefix + "ffn_gate_exps.weight", stacks.gate);
    add(out, prefix + "ffn_up_exps.weight", stacks.up);
    add(out, prefix + "ffn_down_exps.weight", stacks.down);
    if (!c.layer(i).expert_bias) continue;
    std::vector<float> gates, ups;
    const auto ffn = size_t(c.ffn);
    for (size_t k = 0; k < stacks.gate_up_bias.size(); ++k)
      (k / ffn % 2 ? ups : gates).push_back(stacks.gate_up_bias[k]);
    add_floats(out, prefix + "ffn_gate_exps.bias", {c.experts, c.ffn}, gates);
    add_floats(out, prefix + "ffn_up_exps.bias", {c.experts, c.ffn}, ups);
    add_floats(out, prefix + "ffn_down_exps.bias", {c.experts, c.width}, stacks.down_bias);
  }
  testing::write_file(path, out.bytes());
}

TEST(Mixture, GgufFilesGiveTheBitsOfFolders) {
  const TempFolder folder;
  for (const char* name : {"qwen3moe", "olmoe"}) {
    const std::string path = folder.file(std::string(name) + ".gguf");
    write_gguf(path, golden(name), name);
    const auto a = logits_of(golden(name)), b = logits_of(path);
    ASSERT_EQ(a.size(), b.size());
    EXPECT_EQ(0, std::memcmp(a.data(), b.data(), a.size() * sizeof(float))) << name;
  }
}

// gpt-oss as it is published: experts as blocks and scales, two neighbouring values to a byte.
TEST(Mixture, Mxfp4FoldersGiveTheBitsOfMxfp4Files) {
  const TempFolder folder;
  const auto file = ModelFile::open(golden("gpt-oss"));
  std::filesystem::create_directory(folder.file("oss"));
  const Bytes text = testing::read_file(golden("gpt-oss") + "/config.json");
  std::string config(reinterpret_cast<const char*>(text.data()), text.size());
  config.insert(config.find('{') + 1, "\"quantization_config\": {\"quant_method\": \"mxfp4\"},");
  testing::write_file(folder.file("oss/config.json"), config);
  for (const char* part : {"tokenizer.json", "tokenizer_config.json"})
    testing::write_file(folder.file(std::string("oss/") + part), testing::read_file(golden("gpt-oss") + "/" + part));
  SafetensorsWriter out;
  for (const NamedTensor& t : file->tensors()) {
    const Tensor& v = t.tensor;
    const std::vector<int64_t> shape(v.shape.begin(), v.shape.begin() + v.rank);
    const bool weights = t.original.ends_with("gate_up_proj") || t.original.ends_with("experts.down_proj");
    if (!weights) {
      out.add(t.original, "BF16", shape, {v.data, v.data + v.bytes()});
      continue;
    }
    // [experts, in, out] -> rows of outputs, each in blocks of 32 inputs.
    const int64_t experts = shape[0], in = shape[1], outs = shape[2];
    std::vector<float> values(size_t(v.elements()));
    dequantise(v.type, v.data, v.elements(), values.data());
    Bytes blocks, scales;
    for (int64_t e = 0; e < experts; ++e)
      for (int64_t o = 0; o < outs; ++o)
        for (int64_t b = 0; b < in / 32; ++b) {
          float x[32];
          for (int64_t i = 0; i < 32; ++i) x[i] = values[size_t((e * in + 32 * b + i) * outs + o)];
          BlockMXFP4 block;
          quantise(DType::kMXFP4, x, 32, &block);
          const auto code = [&](size_t i) { return i < 16 ? block.q[i] & 15 : block.q[i - 16] >> 4; };
          scales.push_back(std::byte(block.e));
          for (size_t i = 0; i < 32; i += 2) blocks.push_back(std::byte(code(i) | code(i + 1) << 4));
        }
    out.add(t.original + "_blocks", "U8", {experts, outs, in / 32, 16}, blocks);
    out.add(t.original + "_scales", "U8", {experts, outs, in / 32}, scales);
  }
  testing::write_file(folder.file("oss/model.safetensors"), out.bytes());
  ASSERT_EQ(ModelFile::open(folder.file("oss"))->config().expert_form, ExpertForm::kBlocks);
  // The model's logits, but for what four bits lose.
  const auto right = logits_of(golden("gpt-oss")), rounded = logits_of(folder.file("oss"));
  double error = 0, power = 0;
  for (size_t i = 0; i < right.size(); ++i)
    error += std::pow(double(rounded[i] - right[i]), 2), power += std::pow(double(right[i]), 2);
  EXPECT_GT(error, 0);
  EXPECT_LT(error, 0.2 * power);
  // GGUF files do not say the limit of SwiGLU: it is 7.
  const std::string limit = "\"swiglu_limit\": 2.0";
  ASSERT_NE(config.find(limit), std::string::npos);
  config.replace(config.find(limit), limit.size(), "\"swiglu_limit\": 7.0");
  testing::write_file(folder.file("oss/config.json"), config);
  write_gguf(folder.file("oss.gguf"), folder.file("oss"), "gpt-oss");
  ASSERT_EQ(ModelFile::open(folder.file("oss.gguf"))->get("blk.0.ffn_up_exps.weight").type, DType::kMXFP4);
  const auto a = logits_of(folder.file("oss")), b = logits_of(folder.file("oss.gguf"));
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(0, std::memcmp(a.data(), b.data(), a.size() * sizeof(float)));
  // The same file as convert writes it: the blocks keep their type, biases and routers are floats.
  convert_to_gguf(*ModelFile::open(folder.file("oss")), {}, {.out = folder.file("made.gguf")});
  const auto made = ModelFile::open(folder.file("made.gguf"));
  for (const char* part : {"gate", "up", "down"})
    EXPECT_EQ(made->get(std::string("blk.1.ffn_") + part + "_exps.weight").type, DType::kMXFP4);
  EXPECT_EQ(made->get("blk.1.ffn_up_exps.bias").type, DType::kF32);
  const auto c = logits_of(folder.file("made.gguf"));
  ASSERT_EQ(a.size(), c.size());
  EXPECT_EQ(0, std::memcmp(a.data(), c.data(), a.size() * sizeof(float)));
}

TEST(Mixture, ConvertedFilesGiveTheBitsOfFolders) {
  const TempFolder folder;
  for (const char* name : {"qwen3moe", "olmoe"}) {  // both forms have q and k in halves
    const std::string path = folder.file(std::string(name) + ".gguf");
    convert_to_gguf(*ModelFile::open(golden(name)), {}, {.out = path});
    const auto a = logits_of(golden(name)), b = logits_of(path);
    ASSERT_EQ(a.size(), b.size());
    EXPECT_EQ(0, std::memcmp(a.data(), b.data(), a.size() * sizeof(float))) << name;
  }
}

// Experts are quantised row by row as other matrices are, whatever form they come in; routers stay floats.
TEST(Mixture, QuantisedExpertsAreTheirRowsQuantised) {
  const TempFolder folder;
  for (const char* name : {"qwen3moe", "mixtral", "olmoe"}) {
    const auto source = ModelFile::open(golden(name));
    const auto path = [&](const char* what) { return folder.file(std::string(name) + what); };
    const auto quantise_to = [&](const std::string& from, const std::string& to) {
      quantize_model(*ModelFile::open(from), {}, {.out = to, .types = {.matrices = DType::kQ4_0}});
    };
    quantise_to(golden(name), path("-4.gguf"));
    convert_to_gguf(*source, {}, {.out = path(".gguf")});
    quantise_to(path(".gguf"), path("-4again.gguf"));
    const auto made = ModelFile::open(path("-4.gguf")), again = ModelFile::open(path("-4again.gguf"));
    ASSERT_EQ(made->tensors().size(), again->tensors().size());
    for (const NamedTensor& t : made->tensors()) {
      const Tensor& other = again->get(t.name);
      ASSERT_EQ(t.tensor.bytes(), other.bytes()) << t.name;
      EXPECT_EQ(0, std::memcmp(t.tensor.data, other.data, t.tensor.bytes())) << name << " " << t.name;
    }
    EXPECT_EQ(made->get("blk.0.ffn_gate_inp.weight").type, DType::kF32);
    const ExpertStacks right = expert_stacks(*source, "blk.1.", source->config().layer(1));
    const std::pair<const char*, Tensor> stacks[] = {{"gate", right.gate}, {"up", right.up}, {"down", right.down}};
    for (const auto& [part, stack] : stacks) {
      const Tensor& got = made->get(std::string("blk.1.ffn_") + part + "_exps.weight");
      ASSERT_EQ(got.type, DType::kQ4_0);
      ASSERT_EQ(got.shape, stack.shape);
      const auto columns = size_t(stack.columns());
      std::vector<float> row(columns);
      Bytes want(got.row_bytes());
      for (int64_t r = 0; r < stack.rows(); ++r) {
        dequantise(stack.type, stack.row(r), stack.columns(), row.data());
        quantise_search(DType::kQ4_0, row.data(), stack.columns(), want.data());
        ASSERT_EQ(0, std::memcmp(want.data(), got.row(r), want.size())) << name << " " << part << " row " << r;
      }
    }
    const auto exact = logits_of(golden(name)), rounded = logits_of(path("-4.gguf"));
    double error = 0, power = 0;
    for (size_t i = 0; i < exact.size(); ++i)
      error += std::pow(double(rounded[i] - exact[i]), 2), power += std::pow(double(exact[i]), 2);
    EXPECT_GT(error, 0);
    EXPECT_LT(error, 0.4 * power) << name;
  }
}

}  // namespace
}  // namespace sx
