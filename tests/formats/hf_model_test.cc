// Whole Hugging Face folders: one file, shards, and folders with something wrong in them.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "expect_error.h"
#include "formats/model_file.h"
#include "support/model_writer.h"

namespace sx::testing {
namespace {

using nlohmann::json;

class HfModel : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return folder_.file(name); }
  std::shared_ptr<ModelFile> open() const { return ModelFile::open(folder_.path()); }
  void refuse(std::initializer_list<std::string> parts) const {
    expect_error([&] { open(); }, {folder_.path()});
    expect_error([&] { open(); }, parts);
  }
  json read_json(const std::string& name) const {
    const Bytes bytes = read_file(at(name));
    return json::parse(reinterpret_cast<const char*>(bytes.data()),
                       reinterpret_cast<const char*>(bytes.data() + bytes.size()));
  }
  // Changes one member of a JSON file.
  void change(const std::string& name, const char* key, json value) const {
    json all = read_json(name);
    all[key] = std::move(value);
    write_file(at(name), all.dump());
  }

  TempFolder folder_;
  TinySpec spec_;
};

TEST_F(HfModel, OpensEveryArchitecture) {
  for (const std::string arch : {"llama", "mistral", "qwen2", "qwen3"}) {
    for (const int shards : {1, 3}) {
      for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
        std::filesystem::remove(entry.path());
      spec_.arch = arch;
      spec_.weights = shards == 1 ? DType::kF32 : DType::kBF16;
      spec_.tied = arch == "qwen2";
      write_tiny_hf(folder_.path(), spec_, shards);
      const auto model = open();
      EXPECT_EQ(model->format(), "safetensors");
      EXPECT_EQ(model->config().arch_name, arch);
      EXPECT_EQ(model->config().tied_head, spec_.tied);
      const auto expected = tiny_tensors(spec_);
      ASSERT_EQ(model->tensors().size(), expected.size());
      for (const auto& tensor : expected) {
        const Tensor& found = model->get(tensor.name);
        if (found.type == DType::kF32) {
          EXPECT_EQ(0, std::memcmp(found.data, tensor.values.data(), found.bytes())) << tensor.name;
        }
        model->release(found);
      }
      EXPECT_FALSE(model->tokenizer().tokenizer_json.empty());
      EXPECT_FALSE(model->tokenizer().chat_template.empty());
      EXPECT_EQ(model->tokenizer().eos, 0);
      EXPECT_EQ(model->tokenizer().vocab, spec_.vocab);
      EXPECT_TRUE(model->tokenizer().model.empty());
      EXPECT_FALSE(model->metadata().empty());
    }
  }
}

TEST_F(HfModel, TemplateFileWins) {
  write_tiny_hf(folder_.path(), spec_);
  write_file(at("chat_template.jinja"), "{{ file }}");
  write_file(at("special_tokens_map.json"), "{\"bos_token\": \"x\"}");
  EXPECT_EQ(open()->tokenizer().chat_template, "{{ file }}");
  EXPECT_EQ(open()->tokenizer().special_tokens_map_json, "{\"bos_token\": \"x\"}");
}

TEST_F(HfModel, TiedHeadIgnoresTheStoredCopy) {
  write_tiny_hf(folder_.path(), spec_);  // with lm_head.weight
  change("config.json", "tie_word_embeddings", true);
  EXPECT_EQ(open()->find("output.weight"), nullptr);
}

TEST_F(HfModel, RefusesFoldersWithoutWeightsOrConfig) {
  refuse({"config.json"});
  write_file(at("config.json"), tiny_config_json(spec_));
  refuse({"model.safetensors"});
  write_file(at("pytorch_model.bin"), "PK");
  refuse({"pytorch_model.bin", "safe_serialization=True"});
  expect_error([&] { ModelFile::open(at("absent")); }, {at("absent")});
}

TEST_F(HfModel, RefusesMissingMisshapenAndForeignTensors) {
  const auto write = [&](const std::function<bool(SafetensorsWriter&, const TinyTensor&)>& add) {
    SafetensorsWriter out;
    for (const auto& tensor : tiny_tensors(spec_)) {
      if (!add(out, tensor)) out.add(tensor.hf_name, DType::kF32, tensor.shape, tensor.values);
    }
    write_file(at("model.safetensors"), out.bytes());
  };
  write_tiny_hf(folder_.path(), spec_);
  spec_.layers = 1;
  change("config.json", "num_hidden_layers", 1);
  write([](SafetensorsWriter&, const TinyTensor&) { return false; });
  EXPECT_NO_THROW(open());
  for (const auto& bad : tiny_tensors(spec_)) {
    write([&](SafetensorsWriter&, const TinyTensor& tensor) { return tensor.name == bad.name; });
    refuse({bad.name, "missing"});
    write([&](SafetensorsWriter& out, const TinyTensor& tensor) {
      if (tensor.name != bad.name) return false;
      std::vector<int64_t> shape = tensor.shape;
      shape.push_back(1);
      out.add(tensor.hf_name, DType::kF32, shape, tensor.values);
      return true;
    });
    refuse({bad.hf_name, "shape", "expected"});
    write([&](SafetensorsWriter& out, const TinyTensor& tensor) {
      if (tensor.name != bad.name) return false;
      out.add(tensor.hf_name, "I32", tensor.shape, Bytes(tensor.values.size() * 4));
      return true;
    });
    refuse({bad.hf_name, "I32"});
  }
  write([&](SafetensorsWriter& out, const TinyTensor& tensor) {
    if (tensor.name == "output.weight") {
      out.add("model.layers.7.mlp.up_proj.weight", DType::kF32, {1}, std::vector<float>{1});
      out.add("model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {1}, std::vector<float>{1});
    }
    return false;
  });
  refuse({"model.layers.7.mlp.up_proj.weight", "not part"});
}

TEST_F(HfModel, RefusesBadIndexFiles) {
  write_tiny_hf(folder_.path(), spec_, 2);
  const std::string index = "model.safetensors.index.json";
  const json good = read_json(index);
  EXPECT_NO_THROW(open());
  for (const json& bad : {json(1), json::object(), json(nullptr), json::array()}) {
    change(index, "weight_map", bad);
    refuse({index, "weight_map"});
  }
  for (const char* name : {"../model.safetensors", "/etc/passwd", "..", ".", "", "a/b", "a\\b"}) {
    json map = good["weight_map"];
    map["lm_head.weight"] = name;
    change(index, "weight_map", map);
    refuse({index, "plain file name"});
  }
  json map = good["weight_map"];
  map["lm_head.weight"] = 5;
  change(index, "weight_map", map);
  refuse({index, "lm_head.weight"});
  map["lm_head.weight"] = "model-00001-of-00002.safetensors";  // it is in the other one
  change(index, "weight_map", map);
  refuse({index, "lm_head.weight"});
  map["lm_head.weight"] = "model-00009-of-00002.safetensors";
  change(index, "weight_map", map);
  refuse({index, "model-00009"});
  write_file(at(index), good.dump());
  std::filesystem::copy_file(at("model-00001-of-00002.safetensors"), at("copy.safetensors"));
  map = good["weight_map"];
  map["model.embed_tokens.weight"] = "copy.safetensors";  // the same tensors in two files
  change(index, "weight_map", map);
  refuse({"two tensors"});
}

TEST_F(HfModel, RefusesBadCompanions) {
  write_tiny_hf(folder_.path(), spec_);
  change("generation_config.json", "eos_token_id", {0, 5000});
  refuse({"generation_config.json", "eos_token_id", "5000"});
  write_tiny_hf(folder_.path(), spec_);
  change("config.json", "bos_token_id", 320);
  refuse({"config.json", "bos_token_id", "320"});
  write_tiny_hf(folder_.path(), spec_);
  write_file(at("tokenizer_config.json"), "{");
  refuse({"tokenizer_config.json", "JSON"});
  write_tiny_hf(folder_.path(), spec_);
  std::filesystem::remove(at("tokenizer.json"));
  EXPECT_TRUE(open()->tokenizer().tokenizer_json.empty());  // the tokenizer decides whether it can live without
  change("config.json", "vocab_size", 319);
  refuse({"model.embed_tokens.weight", "[320, 64]", "[319, 64]"});
}

}  // namespace
}  // namespace sx::testing
