#include "formats/family_settings.h"

#include <limits>

#include "base/error.h"
#include "base/printable.h"
#include "tensor/blocks.h"

namespace sx {

std::string GgufSettings::name(std::string_view key) const { return fmt::format("{}.{}", arch_, key); }

const NamedTensor* GgufSettings::tensor(std::string_view name) const {
  for (const NamedTensor& entry : tensors_)
    if (entry.name == name) return &entry;
  return nullptr;
}

int GgufSettings::to_int(const std::string& key, int64_t value) const {
  if (value < 0 || value > std::numeric_limits<int>::max()) {
    fail("{}: key '{}' is {}, which is out of range", file_.path(), key, value);
  }
  return static_cast<int>(value);
}

std::optional<int> GgufSettings::uniform(std::string_view key) const {
  const std::string full = name(key);
  const GgufValue* value = file_.find(full);
  if (!value) return std::nullopt;
  const GgufArray* array = value->as_array();
  if (!array) return to_int(full, *file_.get_int(full));
  if (!gguf_is_integer(array->element) || array->count == 0) {
    fail("{}: key '{}' is {}; an integer or an array of integers is expected", file_.path(), full, value->print(60));
  }
  const int64_t first = gguf_integer(*array, 0);
  for (size_t i = 1; i < array->count; ++i) {
    if (gguf_integer(*array, i) != first) {
      fail("{}: key '{}' differs between layers ({} and {}); only uniform models are supported", file_.path(), full,
           first, gguf_integer(*array, i));
    }
  }
  return to_int(full, first);
}

std::optional<int> GgufSettings::integer(std::string_view key) const {
  const std::string full = name(key);
  if (const auto value = file_.get_int(full)) return to_int(full, *value);
  return std::nullopt;
}

int GgufSettings::required(std::string_view key) const {
  const auto value = uniform(key);
  if (!value) fail("{}: key '{}' is missing", file_.path(), name(key));
  return *value;
}

float GgufSettings::number_or(std::string_view key, float value) const {
  const auto found = number(key);
  return found ? static_cast<float>(*found) : value;
}

std::vector<float> GgufSettings::floats(std::string_view name, int count) const {
  const NamedTensor* found = tensor(name);
  if (!found) return {};
  const Tensor& values = found->tensor;
  if (values.type != DType::kF32 || values.rank != 1 || values.shape[0] != count) {
    fail("{}: tensor '{}' is {} of rank {} with {} elements; F32 [{}] is expected", file_.path(), name,
         dtype_name(values.type), values.rank, values.elements(), count);
  }
  std::vector<float> out(static_cast<size_t>(count));
  dequantise(values.type, values.data, values.elements(), out.data());
  return out;
}

std::optional<int> HfSettings::integer(const char* key) const {
  const auto value = json_int(json_, key, file_);
  if (!value) return std::nullopt;
  if (*value < 0 || *value > std::numeric_limits<int>::max())
    fail("{}: key '{}' is {}, out of range", file_, key, *value);
  return static_cast<int>(*value);
}

int HfSettings::required(const char* key) const {
  const auto value = integer(key);
  if (!value) fail("{}: key '{}' is missing", file_, key);
  return *value;
}

std::vector<float> HfSettings::floats(const char* key) const {
  const Json* list = member(key);
  if (!list) return {};
  std::vector<float> out;
  for (const auto& entry : *list) {
    if (!list->is_array() || !entry.is_number()) fail("{}: key '{}' is not a list of numbers", file_, key);
    out.push_back(entry.get<float>());
  }
  return out;
}

const char* activation_name(Activation activation) {
  switch (activation) {
    case Activation::kSilu: return "silu";
    case Activation::kGeluTanh: return "gelu_pytorch_tanh";
    case Activation::kGelu: return "gelu";
    case Activation::kRelu2: return "relu2";
  }
  return "";
}

std::optional<Activation> activation_named(std::string_view name) {
  if (name == "gelu_new" || name == "gelu_fast") return Activation::kGeluTanh;
  for (const auto kind : {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu2})
    if (name == activation_name(kind)) return kind;
  return std::nullopt;
}

void read_hf_rope(const HfSettings& in, const ModelConfig& config, const Json& object, RopeConfig& rope) {
  const HfSettings scaling(object, in.file());
  rope.base = scaling.number("rope_theta").value_or(rope.base);
  const std::string type = scaling.text("rope_type").value_or(scaling.text("type").value_or("default"));
  if (type == "default" || type == "none") return;
  rope.original_context = scaling.integer("original_max_position_embeddings").value_or(0);
  const auto factor = scaling.number("factor");
  if (factor) {
    rope.factor = *factor;
  } else if ((type == "yarn" || type == "longrope") && rope.original_context > 0) {
    rope.factor = static_cast<double>(config.context) / rope.original_context;
  } else if (type != "longrope") {
    fail("{}: RoPE scaling of type '{}' has no 'factor'", in.file(), printable(type));
  }
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
  } else if (type == "dynamic") {
    rope.scaling = RopeScaling::kDynamic;
    rope.original_context = config.context;  // the length from which the base grows
  } else if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
    const auto low = scaling.number("low_freq_factor"), high = scaling.number("high_freq_factor");
    if (!low || !high) fail("{}: RoPE scaling 'llama3' needs 'low_freq_factor' and 'high_freq_factor'", in.file());
    rope.low_frequency_factor = *low;
    rope.high_frequency_factor = *high;
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    const auto or_default = [&](const char* key, double value) {
      const double found = scaling.number(key).value_or(0);
      return found == 0 ? value : found;
    };
    rope.beta_fast = or_default("beta_fast", 32);
    rope.beta_slow = or_default("beta_slow", 1);
    rope.attention_factor = or_default("attention_factor", 0);
    rope.mscale = or_default("mscale", 0);
    rope.mscale_all_dim = or_default("mscale_all_dim", 0);
    rope.yarn_truncate = scaling.flag("truncate").value_or(true);
  } else if (type == "longrope") {
    rope.scaling = RopeScaling::kLongRope;
    rope.factors = scaling.floats("short_factor"), rope.long_factors = scaling.floats("long_factor");
    rope.attention_factor = scaling.number("attention_factor").value_or(0);
  } else {
    fail("{}: RoPE scaling of type '{}' is not supported; default, linear, dynamic, llama3, yarn and longrope are",
         in.file(), printable(type));
  }
}

namespace {

std::vector<uint8_t> read_layer_types(const HfSettings& in, const Json& list, int layers) {
  if (!list.is_array()) fail("{}: key 'layer_types' is not a list", in.file());
  if (list.size() != static_cast<size_t>(layers)) {
    fail("{}: key 'layer_types' has {} entries for {} layers", in.file(), list.size(), layers);
  }
  std::vector<uint8_t> out;
  for (const auto& entry : list) {
    const std::string type = entry.is_string() ? entry.get<std::string>() : std::string(entry.type_name());
    if (type != "full_attention" && type != "sliding_attention") {
      fail("{}: layer type '{}' is not supported; full_attention and sliding_attention are", in.file(),
           printable(type));
    }
    out.push_back(type == "sliding_attention");
  }
  return out;
}

}  // namespace

void read_hf_window(const HfSettings& in, ModelConfig& config, int window, const std::vector<uint8_t>& windowed) {
  config.window = window;
  if (window == 0) return;
  const Json* types = in.member("layer_types");
  set_windowed_layers(config, types ? read_layer_types(in, *types, config.layers) : windowed);
}

void read_gguf_window(const GgufSettings& in, ModelConfig& config, int period) {
  config.window = in.integer("attention.sliding_window").value_or(0);
  if (config.window == 0) return;
  const GgufValue* pattern = in.find("attention.sliding_window_pattern");
  const GgufArray* array = pattern ? pattern->as_array() : nullptr;
  if (pattern && !array && period > 0) period = in.required("attention.sliding_window_pattern");
  if (!array && (!pattern || period > 0)) return set_windowed_layers(config, every_nth_full(config.layers, period));
  if (!array || array->element != GgufType::kBool || array->count != static_cast<size_t>(config.layers)) {
    fail("{}: key '{}' is {}; one boolean per layer is expected", in.file().path(),
         in.name("attention.sliding_window_pattern"), pattern->print(60));
  }
  std::vector<uint8_t> windowed;
  for (size_t i = 0; i < array->count; ++i) windowed.push_back(static_cast<uint8_t>(gguf_integer(*array, i)));
  set_windowed_layers(config, windowed);
}

void read_hf_window_rope(const HfSettings& in, ModelConfig& config, double base) {
  RopeConfig rope;
  rope.style = config.rope.style, rope.dims = config.rope.dims, rope.base = base;
  const Json* parameters = in.member("rope_parameters");
  const Json* own = parameters && parameters->is_object() ? json_member(*parameters, "sliding_attention") : nullptr;
  if (own && own->is_object()) read_hf_rope(in, config, *own, rope);
  else if (parameters) rope = config.rope;  // one for all layers
  set_window_rope(config, rope);
}

std::vector<uint8_t> every_nth_full(int layers, int period) {
  std::vector<uint8_t> out;
  for (int i = 0; i < layers && period > 0; ++i) out.push_back((i + 1) % period != 0);
  return out;
}

}  // namespace sx
