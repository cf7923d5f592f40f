// What is refused when a head is opened: every wrong shape, type or field by a message that names it, truncated and
// mutated files without a crash. And what is accepted although config.json leaves it open.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <random>

#include "formats/expect_error.h"
#include "backend/registry.h"
#include "head_parts.h"
#include "model/heads/eagle.h"
#include "model/heads/longspec.h"
#include "model/heads/medusa.h"
#include "support/reference_backend.h"

namespace sx {
namespace {

using testing::Bytes;
using testing::expect_error;
using testing::golden_folder;
using testing::HeadParts;
using testing::TempFolder;

ModelConfig target_config() { return ModelFile::open(golden_folder("target"))->config(); }

struct Case {
  const char* head;
  std::function<void(HeadParts&)> change;
  std::initializer_list<std::string> parts;  // of the message
};

void set_id(HeadParts& parts, const char* name, size_t index, int64_t value) {
  std::memcpy(&parts.get(name).data[index * sizeof(value)], &value, sizeof(value));
}

HeadParts& with(HeadParts& parts, const char* key, const nlohmann::ordered_json& value) {
  parts.config[key] = value;
  return parts;
}

const Case kConfigCases[] = {
    {"eagle3", [](auto& h) { with(h, "hidden_size", 16); }, {"config.json", "'hidden_size' is 16", "width is 8"}},
    {"eagle3", [](auto& h) { with(h, "target_hidden_size", 12); }, {"'target_hidden_size' is 12", "width is 8"}},
    {"eagle1", [](auto& h) { with(h, "hidden_size", 16); }, {"'hidden_size' is 16", "width is 8"}},
    {"medusa", [](auto& h) { with(h, "hidden_size", 16); }, {"'hidden_size' is 16", "width is 8"}},
    {"longspec", [](auto& h) { with(h, "hidden_size", 16); }, {"'hidden_size' is 16", "8 in the target"}},
    {"longspec",
     [](auto& h) { with(h, "num_key_value_heads", 2); },
     {"'num_key_value_heads' is 2", "1 in the target", "another"}},
    {"longspec", [](auto& h) { with(h, "head_dim", 4); }, {"'head_dim' is 4", "8 in the target"}},
    {"longspec", [](auto& h) { with(h, "longspec_window", 0); }, {"'longspec_window' is 0", "1 to 65536"}},
    {"longspec", [](auto& h) { with(h, "longspec_window", 70000); }, {"'longspec_window' is 70000"}},
    {"longspec", [](auto& h) { with(h, "draft_vocab_size", 20); }, {"'lm_head.weight' is missing", "20"}},
    {"longspec-own-head", [](auto& h) { with(h, "draft_vocab_size", 23); }, {"'lm_head.weight'", "[24, 8]", "[23, 8]"}},
    {"eagle3", [](auto& h) { with(h, "vocab_size", 41); }, {"'vocab_size'", "41", "40"}},
    {"eagle1", [](auto& h) { with(h, "vocab_size", 39); }, {"'vocab_size'", "39", "40"}},
    {"medusa", [](auto& h) { with(h, "vocab_size", 39); }, {"'vocab_size'", "39", "40"}},
    {"eagle3", [](auto& h) { with(h, "draft_vocab_size", 41); }, {"'draft_vocab_size' is 41", "40"}},
    {"eagle3", [](auto& h) { with(h, "draft_vocab_size", 23); }, {"'lm_head.weight'", "[24, 8]", "[23, 8]"}},
    {"eagle3", [](auto& h) { with(h, "draft_vocab_size", "many"); }, {"'draft_vocab_size'", "integer"}},
    {"eagle3",
     [](auto& h) {
       with(h, "eagle_aux_hidden_state_layer_ids", {2, 3, 8});
     },
     {"'eagle_aux_hidden_state_layer_ids' lists 8", "0 to 6", "7 means after the last"}},
    {"eagle3",
     [](auto& h) {
       with(h, "eagle_aux_hidden_state_layer_ids", {2, -1, 3});
     },
     {"lists -1"}},
    {"eagle3",
     [](auto& h) { with(h, "eagle_aux_hidden_state_layer_ids", nlohmann::ordered_json::array()); },
     {"'eagle_aux_hidden_state_layer_ids'", "list"}},
    {"eagle3",
     [](auto& h) { with(h, "eagle_aux_hidden_state_layer_inputs", "2"); },
     {"'eagle_aux_hidden_state_layer_inputs'", "list"}},
    {"eagle3",
     [](auto& h) {
       with(h, "eagle_aux_hidden_state_layer_ids", {2, 3});
     },
     {"'fc.weight'", "[8, 24]", "[8, 16]"}},
    {"eagle31", [](auto& h) { with(h, "num_aux_hidden_states", 2); }, {"'num_aux_hidden_states' is 2", "3 layers"}},
    {"eagle3", [](auto& h) { with(h, "eagle_config", 3); }, {"'eagle_config'", "object"}},
    {"eagle3-before-fc",
     [](auto& h) { h.config["eagle_config"]["use_aux_hidden_state"] = false; },
     {"'use_aux_hidden_state'"}},
    {"eagle3-before-fc", [](auto& h) { with(h, "fc_norm", true); }, {"'fc_norm' and 'norm_before_fc'"}},
    {"eagle3-before-fc",
     [](auto& h) { h.config["eagle_config"]["norm_before_fc"] = false; },
     {"'input_norm.weight'", "not part"}},
    {"eagle31", [](auto& h) { with(h, "fc_norm", false); }, {"'fc_norm.0.weight'", "not part"}},
    {"eagle3", [](auto& h) { with(h, "fc_norm", true); }, {"'fc_norm.0.weight' of shape [8] is missing"}},
    {"eagle3", [](auto& h) { with(h, "norm_before_residual", "yes"); }, {"'norm_before_residual'", "true or false"}},
    {"eagle3", [](auto& h) { with(h, "num_attention_heads", 4); }, {"q_proj.weight'", "[16, 16]", "[32, 16]"}},
    {"eagle3", [](auto& h) { with(h, "num_key_value_heads", 3); }, {"KV heads is 3"}},
    {"eagle3", [](auto& h) { with(h, "head_dim", 7); }, {"head size 7 is odd"}},
    {"eagle3", [](auto& h) { with(h, "intermediate_size", 13); }, {"gate_proj.weight'", "[12, 8]", "[13, 8]"}},
    {"eagle3", [](auto& h) { with(h, "hidden_act", "gelu"); }, {"'hidden_act'", "gelu"}},
    {"eagle3", [](auto& h) { with(h, "num_hidden_layers", 2); }, {"'layers.1.input_layernorm.weight'", "missing"}},
    {"eagle3", [](auto& h) { with(h, "num_hidden_layers", 17); }, {"'num_hidden_layers' is 17", "at most 16"}},
    {"eagle3-two-layers", [](auto& h) { with(h, "num_hidden_layers", 1); }, {"'layers.1.", "not part"}},
    {"eagle3", [](auto& h) { with(h, "attention_bias", true); }, {"'attention_bias'", "q_proj.bias"}},
    {"eagle3", [](auto& h) { with(h, "mlp_bias", true); }, {"'mlp_bias'", "gate_proj.bias"}},
    {"eagle3",
     [](auto& h) {
       with(h, "rope_scaling", {{"rope_type", "magic"}, {"factor", 2}});
     },
     {"magic"}},
    {"eagle3",
     [](auto& h) {
       with(h, "quantization_config", {{"bits", 4}});
     },
     {"'quantization_config'"}},
    {"eagle3", [](auto& h) { with(h, "max_position_embeddings", 0); }, {"context length is 0"}},
    {"eagle3", [](auto& h) { h.config.erase("intermediate_size"); }, {"'intermediate_size' is missing"}},
    {"eagle3-speculators",
     [](auto& h) { with(h, "transformer_layer_config", 1); },
     {"'transformer_layer_config'", "object"}},
    {"eagle1", [](auto& h) { with(h, "bias", true); }, {"'fc.bias' of shape [8] is missing"}},
    {"eagle1-bias", [](auto& h) { with(h, "bias", false); }, {"'fc.bias'", "not part"}},
    {"medusa", [](auto& h) { with(h, "medusa_num_heads", 4); }, {"'medusa_num_heads' is 4", "3 heads"}},
    {"medusa", [](auto& h) { with(h, "medusa_num_layers", 2); }, {"'medusa_num_layers' is 2", "1"}},
    {"eagle1", [](auto& h) { h.config = 5; }, {"config.json", "not a JSON object"}},
};

const Case kTensorCases[] = {
    {"longspec",
     [](auto& h) { h.remove("cross_attn.o_proj.weight"); },
     {"'layers.0.cross_attn.o_proj.weight'", "missing", "LongSpec"}},
    {"longspec",
     [](auto& h) { h.rename("post_self_attention_layernorm.weight", "post_attention_layernorm.weight"); },
     {"'layers.0.post_self_attention_layernorm.weight'", "missing"}},
    {"longspec",
     [](auto& h) {
       h.reshape("cross_attn.q_proj.weight", {8, 8});
     },
     {"'cross_attn.q_proj.weight' has shape [8, 8], expected [16, 8]"}},
    {"longspec",
     [](auto& h) { h.rename("cross_attn.k_proj.weight", "fc.weight"); },
     {"'fc.weight' is not part of this head (LongSpec)"}},
    {"eagle3", [](auto& h) { h.remove("fc.weight"); }, {"'fc.weight' of shape [8, 24] is missing", "EAGLE-3"}},
    {"eagle3",
     [](auto& h) {
       h.reshape("fc.weight", {8, 16});
     },
     {"'fc.weight' has shape [8, 16], expected [8, 24]"}},
    {"eagle3",
     [](auto& h) {
       h.reshape("midlayer.self_attn.k_proj.weight", {8, 8});
     },
     {"model.safetensors", "'midlayer.self_attn.k_proj.weight' has shape [8, 8], expected [8, 16]"}},
    {"eagle3", [](auto& h) { h.remove("midlayer.hidden_norm.weight"); }, {"'layers.0.hidden_norm.weight'", "missing"}},
    {"eagle3", [](auto& h) { h.remove("norm.weight"); }, {"'norm.weight' of shape [8] is missing"}},
    {"eagle3", [](auto& h) { h.remove("d2t"); }, {"'d2t' is missing", "24"}},
    {"eagle3", [](auto& h) { h.reshape("d2t", {23}); }, {"'d2t' has shape [23], expected [24]"}},
    {"eagle3", [](auto& h) { set_id(h, "d2t", 5, 35); }, {"'d2t' maps draft id 5 by 35", "40"}},
    {"eagle3", [](auto& h) { set_id(h, "d2t", 5, -6); }, {"'d2t' maps draft id 5 by -6"}},
    {"eagle3", [](auto& h) { set_id(h, "d2t", 5, int64_t{1} << 62); }, {"'d2t' maps draft id 5"}},
    {"eagle3",
     [](auto& h) { set_id(h, "d2t", 0, 3), set_id(h, "d2t", 1, 2); },
     {"'d2t' maps two draft ids to token 3"}},
    {"eagle3", [](auto& h) { h.remove("lm_head.weight"); }, {"'lm_head.weight' is missing", "24"}},
    {"eagle3", [](auto& h) { h.get("fc.weight").dtype = "I32"; }, {"'fc.weight' has type I32", "BF16 or a quantised"}},
    {"eagle3", [](auto& h) { h.get("norm.weight").dtype = "I32"; }, {"'norm.weight' has type I32", "F32, F16 or BF16"}},
    {"eagle3", [](auto& h) { h.get("d2t").dtype = "F64"; }, {"'d2t' has type F64", "I64"}},
    {"eagle3", [](auto& h) { h.rename("norm.weight", "norm.scale"); }, {"'norm.weight' of shape [8] is missing"}},
    {"eagle3",
     [](auto& h) {
       h.tensors.push_back({"extra", "F32", {1}, Bytes(4)});
     },
     {"'extra' is not part of this head"}},
    {"eagle3",
     [](auto& h) {
       h.tensors.push_back({"layers.0.hidden_norm.weight", "F32", {8}, Bytes(32)});
     },
     {"'layers.0.hidden_norm.weight'", "'midlayer.hidden_norm.weight'", "same part"}},
    {"eagle3",
     [](auto& h) {
       h.tensors.push_back({"mask_hidden", "F32", {1, 24}, Bytes(96)});
     },
     {"'mask_token_id' is missing"}},
    {"eagle3-shared-head",
     [](auto& h) {
       h.tensors.push_back({"d2t", "I64", {40}, Bytes(320)}), set_id(h, "d2t", 38, 1), set_id(h, "d2t", 39, -1);
     },
     {"'d2t' renames tokens", "'lm_head.weight'"}},
    {"eagle3-own-embedding",
     [](auto& h) {
       h.reshape("embed_tokens.weight", {39, 8});
     },
     {"'embed_tokens.weight'", "[40, 8]"}},
    {"eagle3-two-layers",
     [](auto& h) { h.remove("layers.1.self_attn.v_proj.bias"); },
     {"'layers.1.self_attn.v_proj.bias'"}},
    {"eagle1",
     [](auto& h) {
       h.tensors.push_back({"layers.0.input_layernorm.weight", "F32", {8}, Bytes(32)});
     },
     {"'layers.0.input_layernorm.weight' is not part of this head", "EAGLE-1"}},
    {"eagle1", [](auto& h) { h.remove("fc.weight"); }, {"no draft head", "'fc.weight'"}},
    {"medusa", [](auto& h) { h.remove("1.1.weight"); }, {"'lm_heads.1.weight' of shape [40, 8] is missing", "Medusa"}},
    {"medusa", [](auto& h) { h.remove("1.0.linear.weight"); }, {"'blocks.1.layers.0.weight'", "missing"}},
    {"medusa", [](auto& h) { h.remove("1.0.linear.bias"); }, {"'blocks.1.layers.0.bias'", "missing"}},
    {"medusa",
     [](auto& h) {
       h.reshape("2.1.weight", {39, 8});
     },
     {"'2.1.weight' has shape [39, 8], expected [40, 8]"}},
    {"medusa", [](auto& h) { h.rename("2.1.weight", "70.1.weight"); }, {"'lm_heads.2.weight'", "missing"}},
    {"medusa", [](auto& h) { h.rename("2.0.linear.weight", "70.0.linear.weight"); }, {"71 Medusa heads", "64"}},
    {"medusa-vllm", [](auto& h) { set_id(h, "token_map", 3, 40); }, {"'token_map' maps draft id 3 by 40"}},
    {"medusa-vllm", [](auto& h) { h.remove("token_map"); }, {"[24, 8], expected [40, 8]"}},
    {"medusa-vllm",
     [](auto& h) {
       h.reshape("token_map", {24, 1});
     },
     {"'token_map'", "[24, 1]"}},
};

// Replaces fc.weight (of zeros) by blocks with such metadata; empty: none.
void quantise_fc(HeadParts& h, const char* type, const char* shape, size_t bytes) {
  h.get("fc.weight") = {"fc.weight", "U8", {int64_t(bytes)}, Bytes(bytes)};
  if (*type) h.metadata["fc.weight"] = type;
  if (*shape) h.metadata["fc.weight.shape"] = shape;
}

const Case kQuantisedCases[] = {
    {"eagle3", [](auto& h) { quantise_fc(h, "", "", 64); }, {"'fc.weight' has shape [64], expected [8, 24]"}},
    {"eagle3", [](auto& h) { quantise_fc(h, "q9_9", "8,24", 64); }, {"'fc.weight'", "'q9_9' is no quantised type"}},
    {"eagle3", [](auto& h) { quantise_fc(h, "f32", "8,24", 768); }, {"'fc.weight'", "'f32' is no quantised type"}},
    {"eagle3", [](auto& h) { quantise_fc(h, "q8_0", "", 64); }, {"'fc.weight'", "'.shape'", "rows,columns"}},
    {"eagle3", [](auto& h) { quantise_fc(h, "q8_0", "8x24", 64); }, {"'fc.weight'", "'8x24'", "rows,columns"}},
    {"eagle3", [](auto& h) { quantise_fc(h, "q8_0", "8,-24", 64); }, {"'fc.weight'", "rows,columns"}},
    {"eagle3", [](auto& h) { quantise_fc(h, "q8_0", "8,24,", 64); }, {"'fc.weight'", "rows,columns"}},
    {"eagle3", [](auto& h) { quantise_fc(h, "q8_0", "99999999999,32", 64); }, {"'fc.weight'", "rows,columns"}},
    {"eagle3", [](auto& h) { quantise_fc(h, "q8_0", "8,24", 204); }, {"'fc.weight'", "24 columns", "blocks of 32"}},
    {"eagle3", [](auto& h) { quantise_fc(h, "q8_0", "8,32", 271); }, {"'fc.weight'", "needs 272 bytes", "has 271"}},
    {"eagle3",
     [](auto& h) { quantise_fc(h, "q8_0", "8,32", 272); },
     {"'fc.weight' has shape [8, 32], expected [8, 24]"}},
};

void check_cases(std::span<const Case> cases) {
  const ModelConfig target = target_config();
  for (const auto& test : cases) {
    const TempFolder folder;
    HeadParts parts = testing::read_parts(golden_folder(test.head));
    test.change(parts);
    parts.write(folder.path());
    expect_error([&] { HeadFile::open(folder.path(), target); }, test.parts, test.head);
  }
}

TEST(HeadRefusal, Configurations) { check_cases(kConfigCases); }
TEST(HeadRefusal, Tensors) { check_cases(kTensorCases); }
TEST(HeadRefusal, QuantisedStorage) { check_cases(kQuantisedCases); }

TEST(HeadRefusal, FoldersAndKinds) {
  const ModelConfig target = target_config();
  const TempFolder folder;
  const auto open = [&] { HeadFile::open(folder.path(), target); };
  expect_error([&] { HeadFile::open(folder.file("nothing"), target); }, {"nothing", "folder"});
  expect_error(open, {folder.path(), "*.safetensors"});
  testing::write_file(folder.file("pytorch_model.bin"), std::string_view("pickle"));
  expect_error(
      open, {"pytorch_model.bin", "python3 -c", "torch.load", "weights_only=True", "save_file", "model.safetensors"});
  std::filesystem::rename(folder.file("pytorch_model.bin"), folder.file("medusa_lm_head.pt"));
  expect_error(open, {"medusa_lm_head.pt", "python3 -c"});
  testing::write_file(folder.file("model.safetensors"), testing::read_parts(golden_folder("eagle3")).safetensors());
  expect_error(open, {"no config.json"});
  // A head for a target with other layers, and the wrong class for a head.
  ModelConfig shallow = target;
  shallow.layers = 2;
  expect_error([&] { HeadFile::open(golden_folder("eagle3"), shallow); },
               {"'eagle_aux_hidden_state_layer_ids' is missing", "2 layers"});
  const auto backend = make_reference_backend();
  const auto model = Model::load(ModelFile::open(golden_folder("target")), *backend, {});
  expect_error([&] { EagleHead::load(HeadFile::open(golden_folder("medusa"), target), *model, *backend, {}); },
               {"Medusa head"});
  expect_error([&] { MedusaHeads::load(HeadFile::open(golden_folder("eagle1"), target), *model, *backend, 4); },
               {"EAGLE-1 head"});
  expect_error([&] { EagleHead::load(HeadFile::open(golden_folder("longspec"), target), *model, *backend, {}); },
               {"LongSpec head"});
  expect_error([&] { LongSpecHead::load(HeadFile::open(golden_folder("eagle3"), target), *model, *backend, {}); },
               {"EAGLE-3 head"});
}

TEST(HeadAccepted, WhatConfigsLeaveOpen) {
  const ModelConfig target = target_config();
  const TempFolder folder;
  const auto opened = [&](const char* head, const std::function<void(HeadParts&)>& change) {
    HeadParts parts = testing::read_parts(golden_folder(head));
    change(parts);
    parts.write(folder.path());
    return HeadFile::open(folder.path(), target);
  };
  auto file = opened("eagle3", [](auto& h) {
    for (auto& part : h.tensors) part.name = "model." + part.name;
  });
  EXPECT_EQ(file->config().features, (std::vector<int>{2, 3, 4}));
  EXPECT_EQ(file->taps().hidden, file->config().features);
  EXPECT_EQ(file->config().cell.rope.base, 10000);  // never the target's 50000
  EXPECT_EQ(file->config().norm_before_residual, false);
  EXPECT_EQ(file->token_map().size(), 24u);
  file =
      opened("eagle3", [](auto& h) { h.config.erase("max_position_embeddings"), h.config.erase("num_hidden_layers"); });
  EXPECT_EQ(file->config().trained_length(), 2048);
  file = opened("eagle1-bias", [](auto& h) { h.config.erase("bias"); });
  EXPECT_TRUE(file->config().bias && file->config().kind == HeadConfig::Kind::kEagle1);
  EXPECT_EQ(file->taps().hidden, std::vector<int>{7});
  file = opened("eagle3-before-fc", [](auto& h) { h.config["eagle_config"].erase("norm_before_fc"); });
  EXPECT_TRUE(file->config().norm_before_fc);
  file = opened("eagle31", [](auto& h) { h.config.erase("fc_norm"); });
  EXPECT_TRUE(file->config().fc_norm && file->config().norm_output);
  file = opened("medusa", [](auto& h) { h.config = nlohmann::ordered_json::object(); });
  EXPECT_TRUE(file->config().kind == HeadConfig::Kind::kMedusa && file->config().medusa_heads == 3);
  // An identity map is no map; the target's head needs none.
  file = opened("eagle3-shared-head", [](auto& h) { h.tensors.push_back({"d2t", "I64", {40}, Bytes(320)}); });
  EXPECT_TRUE(file->token_map().empty() && !file->config().own_head);
  // Two shards instead of one file.
  HeadParts parts = testing::read_parts(golden_folder("eagle3")), second = parts;
  second.tensors.erase(second.tensors.begin(), second.tensors.begin() + 5);
  parts.tensors.resize(5);
  const TempFolder shards;
  parts.write(shards.path());
  std::filesystem::rename(shards.file("model.safetensors"), shards.file("model-00001-of-00002.safetensors"));
  testing::write_file(shards.file("model-00002-of-00002.safetensors"), second.safetensors());
  EXPECT_EQ(HeadFile::open(shards.path(), target)->tensors().size(), parts.tensors.size() + second.tensors.size() - 1);
}

// A head of its own width, on a target of another.
TEST(HeadAccepted, AnotherWidth) {
  ModelConfig target = target_config();
  auto config = testing::eagle3_config(target, 1, 20);
  config["hidden_size"] = 32, config["target_hidden_size"] = 8;
  const auto parts =
      testing::random_head(config, {"embed_tokens.weight", "lm_head.weight", "d2t"}, target, DType::kF32, 1);
  const TempFolder folder;
  parts.write(folder.path());
  const auto backend = make_reference_backend();
  const auto model = Model::load(ModelFile::open(golden_folder("target")), *backend, {});
  const auto head = EagleHead::load(HeadFile::open(folder.path(), target), *model, *backend, {});
  std::vector<float> tap(8 * 3, 0.5f), state(32 * 3);
  const float* taps[] = {tap.data(), tap.data(), tap.data()};
  head->fuse(taps, testing::rows_from(0, 3), state.data());
  EXPECT_NE(state[0], 0);
  EXPECT_EQ(std::memcmp(&state[0], &state[64], 32 * sizeof(float)), 0);
  HeadParts without = parts;
  without.remove("embed_tokens.weight");
  without.write(folder.path());
  expect_error([&] { HeadFile::open(folder.path(), target); }, {"'embed_tokens.weight' is missing", "8", "32"});
}

// Opens, and where that works loads and runs a step. Anything but sx::Error is a failure.
class Victim {
 public:
  Victim() : backend_(make_reference_backend()) {
    target_ = Model::load(ModelFile::open(golden_folder("target")), *backend_, {});
  }
  bool survives(const std::string& folder) {
    try {
      const auto file = HeadFile::open(folder, target_->config());
      const float state[3 * 8] = {1, 2, 3};
      const Token tokens[] = {1, 39};
      const int32_t positions[] = {0, 1}, outputs[] = {1};
      const SeqRows seq = {0, 2, 0, 0};
      if (file->config().kind == HeadConfig::Kind::kLongSpec) {
        const auto head = LongSpecHead::load(file, *target_, *backend_, {.max_rows = 4, .max_outputs = 4, .cells = 64});
        const auto kv = backend_->make_kv(head->kv_geometry(1, DType::kF32));
        const auto seen = backend_->make_kv(target_->kv_geometry(1, 64, DType::kF32));
        head->forward({tokens, positions, {&seq, 1}, outputs}, *kv, file->config().window);
        head->look(*seen, 0, 3);
        return true;
      }
      if (file->config().kind == HeadConfig::Kind::kMedusa) {
        MedusaHeads::load(file, *target_, *backend_, 2)->forward(state, 2);
        return true;
      }
      const auto head = EagleHead::load(file, *target_, *backend_, {.max_rows = 4, .max_outputs = 4, .context = 64});
      const auto kv = backend_->make_kv(head->kv_geometry(1, 64, DType::kF32));
      std::vector<const float*> taps(file->config().features.size(), state);
      std::vector<float> fused(2 * size_t(file->config().cell.width));
      head->fuse(taps, testing::rows_from(0, 2), fused.data());
      head->forward({{tokens, positions, {&seq, 1}, outputs}, fused.data()}, *kv);
      return true;
    } catch (const Error&) { return false; }
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> target_;
};

TEST(HeadRefusal, TruncatedFiles) {
  Victim victim;
  for (const char* name : {"eagle1-bias", "eagle3", "medusa-vllm", "longspec-own-head"}) {
    const TempFolder folder;
    const HeadParts parts = testing::read_parts(golden_folder(name));
    parts.write(folder.path());
    ASSERT_TRUE(victim.survives(folder.path()));
    const Bytes whole = parts.safetensors();
    for (size_t size = 0; size < whole.size(); size += 1 + size / 20) {
      testing::write_file(folder.file("model.safetensors"), std::span(whole).first(size));
      EXPECT_FALSE(victim.survives(folder.path())) << name << " cut to " << size;
    }
    testing::write_file(folder.file("model.safetensors"), whole);
    const std::string config = parts.config.dump();
    for (size_t size = 0; size < config.size(); size += 7) {
      testing::write_file(folder.file("config.json"), std::string_view(config).substr(0, size));
      EXPECT_FALSE(victim.survives(folder.path())) << name << " config cut to " << size;
    }
  }
}

TEST(HeadRefusal, MutatedFiles) {
  Victim victim;
  std::mt19937 random(17);
  int opened = 0, refused = 0;
  const char* words[] = {"0",    "-1", "1",  "2",     "4096",  "9999999999", "null",
                         "true", "[]", "{}", "\"x\"", "1e300", "0.5"};
  for (const char* name : {"eagle1-bias", "eagle3", "eagle31", "eagle3-speculators", "eagle3-two-layers", "medusa",
                           "medusa-vllm", "longspec", "longspec-own-head"}) {
    const HeadParts parts = testing::read_parts(golden_folder(name));
    const TempFolder folder;
    for (int i = 0; i < 120; ++i) {
      parts.write(folder.path());
      if (i % 2) {  // a value of the config
        HeadParts changed = parts;
        auto* object = &changed.config;
        if (object->contains("transformer_layer_config") && random() % 2)
          object = &(*object)["transformer_layer_config"];
        auto at = object->begin();
        std::advance(at, random() % object->size());
        *at = nlohmann::ordered_json::parse(words[random() % std::size(words)]);
        changed.write(folder.path());
      } else {  // bytes of the header
        Bytes bytes = parts.safetensors();
        uint64_t header = 0;
        std::memcpy(&header, bytes.data(), sizeof(header));
        for (unsigned n = 1 + random() % 3; n > 0; --n)
          bytes[random() % (8 + header)] = std::byte(random() % 2 ? '0' + random() % 10 : random());
        testing::write_file(folder.file("model.safetensors"), bytes);
      }
      ++(victim.survives(folder.path()) ? opened : refused);
    }
  }
  EXPECT_GT(opened, 20);  // both ways are taken
  EXPECT_GT(refused, 300);
}

}  // namespace
}  // namespace sx
