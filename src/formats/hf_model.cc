// A model as a Hugging Face folder, behind the face of ModelFile.
#include "formats/hf_model.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>

#include "base/error.h"
#include "formats/expert_tensors.h"
#include "formats/family.h"
#include "formats/hf_config.h"
#include "formats/mtp_tensors.h"
#include "base/json_text.h"
#include "base/printable.h"
#include "formats/safetensors.h"
#include "formats/validate.h"

namespace sx {
namespace {

constexpr size_t kMaxConfig = size_t{16} << 20;      // bytes of config.json and its like
constexpr size_t kMaxTokenizer = size_t{256} << 20;  // of tokenizer.json
constexpr size_t kMaxIndex = size_t{100} << 20;      // of model.safetensors.index.json
constexpr size_t kMaxShards = 4096;

class Folder {
 public:
  explicit Folder(std::string path) : path_(std::move(path)) {}
  std::string at(std::string_view name) const { return (std::filesystem::path(path_) / name).string(); }
  bool has(std::string_view name) const {
    std::error_code ignored;
    return std::filesystem::exists(at(name), ignored);
  }
  std::string text(std::string_view name, size_t most) const { return read_text_file_if_any(at(name), most); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A file next to the index, never a path to elsewhere.
void check_plain_name(const std::string& name, const std::string& index) {
  const bool plain = !name.empty() && name.find('/') == std::string::npos && name.find('\\') == std::string::npos &&
                     name.find('\0') == std::string::npos && name != "." && name != "..";
  if (!plain) fail("{}: '{}' in 'weight_map' is not a plain file name", index, printable(name));
}

std::vector<SafetensorsFile> open_indexed(const Folder& folder) {
  const std::string index = folder.at("model.safetensors.index.json");
  const Json json = parse_json(read_text_file(index, kMaxIndex), index);
  const Json* map = json_member(json, "weight_map");
  if (!map || !map->is_object() || map->empty()) fail("{}: key 'weight_map' is missing, empty or not an object", index);
  std::map<std::string, std::vector<std::string>> by_file;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) fail("{}: 'weight_map' gives no file name for '{}'", index, printable(tensor));
    by_file[file.get<std::string>()].push_back(tensor);
  }
  if (by_file.size() > kMaxShards) fail("{}: {} files; at most {} are accepted", index, by_file.size(), kMaxShards);
  std::vector<SafetensorsFile> shards;
  for (const auto& [file, names] : by_file) {
    check_plain_name(file, index);
    if (!folder.has(file)) fail("{}: the file '{}' that 'weight_map' names is missing", index, printable(file));
    shards.emplace_back(folder.at(file));
    for (const auto& name : names) {
      if (!shards.back().find(name)) {
        fail("{}: tensor '{}' is said to be in '{}', but is not there", index, printable(name), printable(file));
      }
    }
  }
  return shards;
}

std::vector<SafetensorsFile> open_weights(const Folder& folder) {
  if (folder.has("model.safetensors.index.json")) return open_indexed(folder);
  if (folder.has("model.safetensors")) {
    std::vector<SafetensorsFile> one;
    one.emplace_back(folder.at("model.safetensors"));
    return one;
  }
  for (const auto* old : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (!folder.has(old)) continue;
    fail(
        "{}: pickled weights are not read, because opening them can run code; convert the folder with "
        "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(other, safe_serialization=True)",
        folder.at(old));
  }
  fail("{}: neither model.safetensors nor model.safetensors.index.json is in the folder", folder.path());
}

TokenizerData read_tokenizer(const Folder& folder, const std::string& config_text, const ModelConfig& config) {
  TokenizerData data;
  data.file = folder.at("tokenizer.json");
  data.vocab = config.vocab;
  data.tokenizer_json = folder.text("tokenizer.json", kMaxTokenizer);
  if (data.tokenizer_json.empty() && folder.has("tokenizer.model")) {
    data.file = folder.at("tokenizer.model");
    data.sentencepiece = folder.text("tokenizer.model", kMaxTokenizer);
    data.added_tokens_json = folder.text("added_tokens.json", kMaxConfig);
  }
  data.tokenizer_config_json = folder.text("tokenizer_config.json", kMaxConfig);
  data.generation_config_json = folder.text("generation_config.json", kMaxConfig);
  data.special_tokens_map_json = folder.text("special_tokens_map.json", kMaxConfig);
  data.chat_template = folder.text("chat_template.jinja", kMaxConfig);
  if (data.chat_template.empty() && !data.tokenizer_config_json.empty()) {
    data.chat_template = chat_template_from_json(data.tokenizer_config_json, folder.at("tokenizer_config.json"));
  }
  data.name = config.name;
  if (config.vocab == 0) return data;  // only looked at, and its size is not known: ids cannot be checked
  token_ids_from_json(config_text, folder.at("config.json"), data);
  if (!data.generation_config_json.empty()) {  // only checked: the tokenizer's room reads it
    TokenizerData scratch;
    scratch.vocab = config.vocab;
    token_ids_from_json(data.generation_config_json, folder.at("generation_config.json"), scratch);
  }
  return data;
}

class HfModel : public ModelFile {
 public:
  HfModel(const Folder& folder, Wanted wanted) : path_(folder.path()) {
    const std::string file = folder.at("config.json");
    if (!folder.has("config.json")) fail("{}: no config.json in the folder", path_);
    config_text_ = read_text_file(file, kMaxConfig);
    try {
      config_ = config_from_json(config_text_, file);
      validate_config(config_, file);
      shards_ = open_weights(folder);
      collect_tensors();
    } catch (const Error& error) {
      if (wanted == Wanted::kModel) throw;
      unsupported_ = error.what();
      config_ = outline_from_json(config_text_, file);
    }
    tokenizer_ = read_tokenizer(folder, config_text_, config_);
    validate_tokenizer(tokenizer_);
  }

  const std::string& path() const override { return path_; }
  std::string format() const override { return "safetensors"; }
  const ModelConfig& config() const override { return config_; }
  const std::string& unsupported() const override { return unsupported_; }
  const TokenizerData& tokenizer() const override { return tokenizer_; }
  std::span<const NamedTensor> tensors() const override { return tensors_; }

  std::vector<Metadatum> metadata() const override {
    std::vector<Metadatum> out;
    const Json json = parse_json(config_text_, path_);
    // A file may hold bytes that are no UTF-8; they are replaced, not thrown at.
    const auto text = [](const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); };
    for (const auto& [key, value] : json.items()) out.push_back({printable(key), printable(text(value))});
    for (const auto& shard : shards_) {
      for (const auto& [key, value] : shard.metadata())
        out.push_back({"safetensors." + printable(key), printable(value)});
    }
    return out;
  }

  void release(const Tensor& tensor) const override {
    for (const auto& shard : shards_) shard.drop(tensor.data, tensor.bytes());
  }

 private:
  void collect_tensors() {
    for (const auto& shard : shards_) {
      for (const auto& entry : shard.tensors()) {
        if (is_ignored_name(entry.name)) continue;
        if (config_.tied_head && entry.name == "lm_head.weight") continue;  // a copy of the embedding
        auto name = config_.mtp_blocks > 0 ? mtp_tensor_name(entry.name, config_) : std::nullopt;
        if (!name) name = canonical_name(entry.name, config_.family);
        // Unknown names stay as they are and are refused by validate_tensors with all the others.
        tensors_.push_back({name.value_or(entry.name), entry.name, shard.path(), entry.tensor});
      }
    }
    auto mtp = take_mtp_tensors(config_.mtp_blocks, tensors_, config_);
    split_fused_tensors(config_, tensors_);
    find_expert_form(tensors_, config_);
    validate_tensors(config_, tensors_, path_);
    std::move(mtp.begin(), mtp.end(), std::back_inserter(tensors_));
  }

  std::string path_, config_text_, unsupported_;
  std::vector<SafetensorsFile> shards_;
  std::vector<NamedTensor> tensors_;
  ModelConfig config_;
  TokenizerData tokenizer_;
};

}  // namespace

std::shared_ptr<ModelFile> open_hf_model(const std::string& folder, Wanted wanted) {
  return std::make_shared<HfModel>(Folder(folder), wanted);
}

}  // namespace sx
