// What a file says of its model, as families read it: the keys of a GGUF file below its architecture's prefix, and
// config.json of a Hugging Face folder. Errors name the file and the key.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_text.h"
#include "formats/gguf.h"
#include "formats/model_file.h"

namespace sx {

class GgufSettings {
 public:
  GgufSettings(const GgufFile& file, std::span<const NamedTensor> tensors, std::string arch)
      : file_(file), tensors_(tensors), arch_(std::move(arch)) {}

  const GgufFile& file() const { return file_; }
  std::string name(std::string_view key) const;  // "llama.block_count"
  const NamedTensor* tensor(std::string_view name) const;
  int to_int(const std::string& key, int64_t value) const;
  // A number, or an array with one equal number per layer.
  std::optional<int> uniform(std::string_view key) const;
  std::optional<int> integer(std::string_view key) const;
  int required(std::string_view key) const;
  std::optional<double> number(std::string_view key) const { return file_.get_double(name(key)); }
  float number_or(std::string_view key, float value) const;
  std::optional<std::string_view> text(std::string_view key) const { return file_.get_string(name(key)); }
  const GgufValue* find(std::string_view key) const { return file_.find(name(key)); }
  // A tensor of `count` floats; empty: there is none.
  std::vector<float> floats(std::string_view tensor, int count) const;

 private:
  const GgufFile& file_;
  std::span<const NamedTensor> tensors_;
  std::string arch_;
};

class HfSettings {
 public:
  HfSettings(const Json& json, const std::string& file) : json_(json), file_(file) {}

  const Json& json() const { return json_; }
  const std::string& file() const { return file_; }
  const Json* member(const char* key) const { return json_member(json_, key); }
  std::optional<double> number(const char* key) const { return json_double(json_, key, file_); }
  float number_or(const char* key, double value) const { return static_cast<float>(number(key).value_or(value)); }
  std::optional<bool> flag(const char* key) const { return json_bool(json_, key, file_); }
  std::optional<std::string> text(const char* key) const { return json_string(json_, key, file_); }
  std::optional<int> integer(const char* key) const;
  int required(const char* key) const;
  // A list of numbers; empty: there is none.
  std::vector<float> floats(const char* key) const;

 private:
  const Json& json_;
  const std::string& file_;
};

const char* activation_name(Activation activation);  // as transformers calls it: "silu"
std::optional<Activation> activation_named(std::string_view name);
// [layers]: 1 but for every `period`-th layer; empty for period 0.
std::vector<uint8_t> every_nth_full(int layers, int period);
// Gives this window to the layers that "layer_types" says, or else to the `windowed` ones (empty: all).
void read_hf_window(const HfSettings& in, ModelConfig& config, int window, const std::vector<uint8_t>& windowed = {});
// "attention.sliding_window" for the layers of "attention.sliding_window_pattern" (one boolean per layer, or, in
// families that have a period, another one), or else of `period`.
void read_gguf_window(const GgufSettings& in, ModelConfig& config, int period = 0);
// A RoPE of their own for windowed layers: of "rope_parameters", or without scaling and with this base.
void read_hf_window_rope(const HfSettings& in, ModelConfig& config, double base);
// RoPE by the keys of an object of config.json: base, type of scaling, its numbers.
void read_hf_rope(const HfSettings& in, const ModelConfig& config, const Json& object, RopeConfig& rope);

}  // namespace sx
