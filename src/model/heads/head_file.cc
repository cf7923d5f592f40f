#include "model/heads/head_file.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <unordered_map>

#include "base/error.h"
#include "base/json_text.h"
#include "base/printable.h"

namespace sx {
namespace {

using Kind = HeadConfig::Kind;

constexpr size_t kMaxConfig = size_t{16} << 20;  // bytes of config.json
constexpr size_t kMaxFiles = 256;

// Files of the folder whose names end so, sorted.
std::vector<std::string> files_ending(const std::string& folder, std::initializer_list<std::string_view> endings) {
  std::vector<std::string> out;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (std::any_of(endings.begin(), endings.end(), [&](std::string_view e) { return name.ends_with(e); }))
      out.push_back(at->path().string());
  }
  if (error) fail("{}: the folder cannot be read: {}", folder, error.message());
  std::sort(out.begin(), out.end());
  return out;
}

// A file that is the head by its name, else all there are.
std::vector<std::string> weight_files(const std::string& folder) {
  auto files = files_ending(folder, {".safetensors"});
  for (const char* name : {"medusa_lm_head.safetensors", "model.safetensors"}) {
    const std::string path = (std::filesystem::path(folder) / name).string();
    if (std::find(files.begin(), files.end(), path) != files.end()) return {path};
  }
  return files;
}

[[noreturn]] void refuse_pickle(const std::string& file, const std::string& folder) {
  fail(
      "{0}: pickled weights are not read, because opening them can run code; convert them with: python3 -c \"import "
      "torch, "
      "safetensors.torch as s; w = torch.load('{0}', map_location='cpu', weights_only=True); "
      "s.save_file({{k: v.contiguous().clone() for k, v in w.items()}}, '{1}/model.safetensors')\"",
      file, folder);
}

std::string print_shape(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::span<const int64_t> shape_of(const Tensor& tensor) {
  return std::span<const int64_t>(tensor.shape).first(static_cast<size_t>(tensor.rank));
}

bool is_float(DType type) { return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16; }
bool is_integer(DType type) { return type == DType::kI64 || type == DType::kI32; }

const std::string* metadatum(const SafetensorsFile& file, const std::string& key) {
  for (const auto& [name, value] : file.metadata())
    if (name == key) return &value;
  return nullptr;
}

// "64,128" -> {64, 128}; false if it is anything else.
bool parse_pair(std::string_view text, int64_t& first, int64_t& second) {
  const char* end = text.data() + text.size();
  const auto comma = std::from_chars(text.data(), end, first);
  if (comma.ec != std::errc() || comma.ptr == end || *comma.ptr != ',') return false;
  const auto rest = std::from_chars(comma.ptr + 1, end, second);
  constexpr int64_t kMost = int64_t{1} << 24;
  return rest.ec == std::errc() && rest.ptr == end && first > 0 && first <= kMost && second > 0 && second <= kMost;
}

// What a head carries for its training or as a leftover; not read.
bool is_ignored(std::string_view name) {
  return name == "t2d" || name == "verifier_norm.weight" || name == "verifier_lm_head.weight" ||
         name.starts_with("confidence_head.") || name.ends_with("rotary_emb.inv_freq") ||
         name.starts_with("layers.0.cross_attn.k_proj.") || name.starts_with("layers.0.cross_attn.v_proj.");
}

void check_tensor(const HeadTensor& expected, const NamedTensor& found) {
  const auto shape = shape_of(found.tensor);
  if (!std::equal(shape.begin(), shape.end(), expected.shape.begin(), expected.shape.end()))
    fail("{}: tensor '{}' has shape {}, expected {}", found.file, printable(found.original), print_shape(shape),
         print_shape(expected.shape));
  const DType type = found.tensor.type;
  const bool ids = expected.name == "d2t" || expected.name == "token_map";
  const bool matrix = expected.shape.size() == 2 && expected.name != "mask_hidden";
  if (ids ? !is_integer(type) : !is_float(type) && !(matrix && dtype_is_quantised(type)))
    fail("{}: tensor '{}' has type {}, expected {}", found.file, printable(found.original), dtype_name(type),
         ids      ? "I64 or I32"
         : matrix ? "F32, F16, BF16 or a quantised type"
                  : "F32, F16 or BF16");
}

void add_layer(const HeadConfig& config, int index, std::vector<HeadTensor>& out) {
  const ModelConfig& c = config.cell;
  const int64_t width = c.width, ffn = c.ffn, q = int64_t{c.heads} * c.head_dim, kv = int64_t{c.kv_heads} * c.head_dim;
  const bool first = index == 0, eagle3 = config.kind == Kind::kEagle3, longspec = config.kind == Kind::kLongSpec,
             mtp = config.kind == Kind::kMtp, dflash = config.kind == Kind::kDFlash;
  const int64_t in = first && eagle3 ? 2 * width : width;
  const auto add = [&](const char* name, std::vector<int64_t> shape) {
    out.push_back({fmt::format("layers.{}.{}", index, name), std::move(shape)});
  };
  if (!first || eagle3 || longspec || mtp || dflash) add("input_layernorm.weight", {width});
  if (mtp) {
    add("enorm.weight", {width});
    add("hnorm.weight", {width});
    add("eh_proj.weight", {width, 2 * width});
    if (config.own_final_norm) add("norm.weight", {width});
  }
  if (first && eagle3) add("hidden_norm.weight", {width});
  add("self_attn.q_proj.weight", {q, in});
  add("self_attn.k_proj.weight", {kv, in});
  add("self_attn.v_proj.weight", {kv, in});
  add("self_attn.o_proj.weight", {width, q});
  if (c.qk_norm == HeadNorm::kEach) {
    add("self_attn.q_norm.weight", {c.head_dim});
    add("self_attn.k_norm.weight", {c.head_dim});
  }
  if (longspec) {
    add("post_self_attention_layernorm.weight", {width});
    add("cross_attn.q_proj.weight", {q, width});
    add("cross_attn.o_proj.weight", {width, q});
    if (config.cross_bias) add("cross_attn.q_proj.bias", {q});
    if (config.cross_out_bias) add("cross_attn.o_proj.bias", {width});
  }
  add(longspec ? "post_cross_attention_layernorm.weight" : "post_attention_layernorm.weight", {width});
  add("mlp.gate_proj.weight", {ffn, width});
  add("mlp.up_proj.weight", {ffn, width});
  add("mlp.down_proj.weight", {width, ffn});
  if (c.qkv_bias) {
    add("self_attn.q_proj.bias", {q});
    add("self_attn.k_proj.bias", {kv});
    add("self_attn.v_proj.bias", {kv});
  }
  if (c.out_bias) add("self_attn.o_proj.bias", {width});
  if (c.mlp_bias) {
    add("mlp.gate_proj.bias", {ffn});
    add("mlp.up_proj.bias", {ffn});
    add("mlp.down_proj.bias", {width});
  }
}

void add_eagle(const HeadConfig& config, std::vector<HeadTensor>& out) {
  const bool eagle3 = config.kind == Kind::kEagle3;
  const int64_t width = config.cell.width, target = config.target_width;
  const int64_t features = target * static_cast<int64_t>(config.features.size());
  out.push_back({"fc.weight", {width, eagle3 ? features : width + target}});
  if (config.bias) out.push_back({"fc.bias", {width}});
  if (config.own_embedding) out.push_back({"embed_tokens.weight", {config.cell.vocab, width}});
  for (int i = 0; i < config.cell.layers; ++i) add_layer(config, i, out);
  if (eagle3) out.push_back({"norm.weight", {width}});
  if (config.own_head) out.push_back({"lm_head.weight", {config.draft_vocab, width}});
  if (config.norm_before_fc) out.push_back({"input_norm.weight", {features}});
  for (size_t i = 0; config.fc_norm && i < config.features.size(); ++i)
    out.push_back({fmt::format("fc_norm.{}.weight", i), {target}});
  if (config.mask_token >= 0) out.push_back({"mask_hidden", {1, features}});
}

void add_medusa(const HeadConfig& config, std::vector<HeadTensor>& out) {
  const int64_t width = config.cell.width;
  for (int head = 0; head < config.medusa_heads; ++head) {
    for (int layer = 0; layer < config.medusa_layers; ++layer) {
      out.push_back({fmt::format("blocks.{}.layers.{}.weight", head, layer), {width, width}});
      if (config.bias) out.push_back({fmt::format("blocks.{}.layers.{}.bias", head, layer), {width}});
    }
    if (head == 0 || !config.shared_head)
      out.push_back({fmt::format("lm_heads.{}.weight", head), {config.draft_vocab, width}});
  }
}

void add_dflash(const HeadConfig& config, std::vector<HeadTensor>& out) {
  const int64_t width = config.cell.width, vocab = config.cell.vocab, rank = config.markov_rank;
  out.push_back({"fc.weight", {width, int64_t{config.target_width} * int64_t(config.features.size())}});
  out.push_back({"hidden_norm.weight", {width}});
  out.push_back({"norm.weight", {width}});
  for (int i = 0; i < config.cell.layers; ++i) add_layer(config, i, out);
  if (config.own_embedding) out.push_back({"embed_tokens.weight", {vocab, width}});
  if (config.own_head) out.push_back({"lm_head.weight", {config.draft_vocab, width}});
  if (rank == 0) return;
  out.push_back({"markov_head.markov_w1.weight", {vocab, rank}});
  out.push_back({"markov_head.markov_w2.weight", {config.draft_vocab, rank}});
}

void add_assistant(const HeadConfig& config, std::vector<HeadTensor>& out) {
  const ModelConfig& c = config.cell;
  const int64_t width = c.width, ffn = c.ffn, q = int64_t{c.heads} * c.head_dim, target = config.target_width;
  for (int i = 0; i < c.layers; ++i) {
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      out.push_back({fmt::format("layers.{}.{}", i, name), std::move(shape)});
    };
    for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight",
                             "pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"})
      add(norm, {width});
    add("self_attn.q_proj.weight", {q, width});
    add("self_attn.q_norm.weight", {c.head_dim});
    add("self_attn.o_proj.weight", {width, q});
    add("mlp.gate_proj.weight", {ffn, width});
    add("mlp.up_proj.weight", {ffn, width});
    add("mlp.down_proj.weight", {width, ffn});
    add("layer_scalar", {1});
  }
  out.push_back({"norm.weight", {width}});
  out.push_back({"pre_projection.weight", {width, 2 * target}});
  out.push_back({"post_projection.weight", {target, width}});
  if (config.own_embedding) out.push_back({"embed_tokens.weight", {c.vocab, width}});
  if (config.own_head) out.push_back({"lm_head.weight", {c.vocab, width}});
}

void add_mtp(const HeadConfig& config, std::vector<HeadTensor>& out) {
  const int64_t width = config.cell.width;
  for (int i = 0; i < config.cell.layers; ++i) add_layer(config, i, out);
  if (config.own_embedding) out.push_back({"embed_tokens.weight", {config.cell.vocab, width}});
  if (config.own_head) out.push_back({"lm_head.weight", {config.draft_vocab, width}});
}

}  // namespace

void check_head_tensors(std::span<const NamedTensor> tensors, const HeadConfig& config, const std::string& path) {
  std::vector<HeadTensor> expected = expected_head_tensors(config);
  std::unordered_map<std::string_view, const NamedTensor*> left;
  for (const auto& entry : tensors) {
    const auto [at, fresh] = left.emplace(entry.name, &entry);
    if (!fresh)
      fail("{}: tensors '{}' and '{}' ({}) are the same part of the head", entry.file, printable(entry.original),
           printable(at->second->original), at->second->file);
  }
  const char* ids = config.kind == Kind::kMedusa ? "token_map" : "d2t";  // optional
  for (const auto& entry : tensors)
    if (entry.name == ids) expected.push_back({ids, {config.draft_vocab}});
  for (const auto& want : expected) {
    const auto at = left.find(want.name);
    if (at == left.end())
      fail("{}: tensor '{}' of shape {} is missing ({} head)", path, want.name, print_shape(want.shape),
           head_kind_name(config.kind));
    check_tensor(want, *at->second);
    left.erase(at);
  }
  for (const auto& entry : tensors)  // ignoring it could mean computing something else than the head does
    if (left.contains(entry.name))
      fail("{}: tensor '{}' is not part of this head ({})", entry.file, printable(entry.original),
           head_kind_name(config.kind));
}

std::vector<HeadTensor> expected_head_tensors(const HeadConfig& config) {
  std::vector<HeadTensor> out;
  switch (config.kind) {
    case Kind::kMedusa: add_medusa(config, out); break;
    case Kind::kLongSpec:
      add_layer(config, 0, out);
      if (config.own_head) out.push_back({"lm_head.weight", {config.draft_vocab, config.cell.width}});
      break;
    case Kind::kEagle1:
    case Kind::kEagle3: add_eagle(config, out); break;
    case Kind::kMtp: add_mtp(config, out); break;
    case Kind::kDFlash: add_dflash(config, out); break;
    case Kind::kAssistant: add_assistant(config, out); break;
  }
  return out;
}

std::shared_ptr<HeadFile> HeadFile::open(const std::string& folder, const ModelConfig& target) {
  const std::string config = (std::filesystem::path(folder) / "config.json").string();
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) fail("{}: a draft head is a folder; this is none", folder);
  const auto names = weight_files(folder);
  if (names.empty()) {
    const auto pickled = files_ending(folder, {".bin", ".pt", ".pth"});
    if (!pickled.empty()) refuse_pickle(pickled.front(), folder);
    fail("{}: there is no *.safetensors in the folder", folder);
  }
  if (names.size() > kMaxFiles) fail("{}: {} *.safetensors; at most {} are accepted", folder, names.size(), kMaxFiles);
  if (!std::filesystem::exists(config, ignored)) fail("{}: no config.json in the folder", folder);
  std::vector<SafetensorsFile> files;
  for (const auto& name : names) files.emplace_back(name);
  return std::make_shared<HeadFile>(folder, read_text_file(config, kMaxConfig), std::move(files), target);
}

HeadFile::HeadFile(std::string folder, std::string_view config_json, std::vector<SafetensorsFile> files,
                   const ModelConfig& target)
    : path_(std::move(folder)), files_(std::move(files)) {
  collect_tensors();
  std::unordered_set<std::string> names;
  for (const auto& entry : tensors_) names.insert(entry.name);
  const std::string file = (std::filesystem::path(path_) / "config.json").string();
  config_ = head_config_from_json(config_json, file, names, target);
  if (const Tensor* map = find("token_map"); map && config_.kind == Kind::kMedusa) {
    if (map->rank != 1 || map->elements() < 1 || map->elements() > config_.cell.vocab)
      fail("{}: tensor 'token_map' has shape {}, expected [1 to {}]", path_, print_shape(shape_of(*map)),
           config_.cell.vocab);
    config_.draft_vocab = static_cast<int>(map->elements());
  }
  check_head_tensors(tensors_, config_, path_);
  read_token_map();
}

void HeadFile::collect_tensors() {
  // A Medusa or LongSpec checkpoint that was merged with its base model: only what carries the prefix is the head.
  std::string_view prefix;
  for (const auto& file : files_)
    for (const auto& entry : file.tensors())
      for (const std::string_view known : {"medusa_head.", "glide."})
        if (entry.name.starts_with(known)) prefix = known;
  for (const auto& file : files_)
    for (const auto& entry : file.tensors()) {
      if (!entry.name.starts_with(prefix)) continue;
      NamedTensor named{canonical_head_name(entry.name), entry.name, file.path(), entry.tensor};
      if (is_ignored(named.name)) continue;
      unwrap_quantised(file, named);
      tensors_.push_back(std::move(named));
    }
}

void HeadFile::unwrap_quantised(const SafetensorsFile& file, NamedTensor& entry) {
  const std::string* type = entry.tensor.type == DType::kI8 ? metadatum(file, entry.original) : nullptr;
  if (!type) return;
  const auto where = fmt::format("{}: tensor '{}'", entry.file, printable(entry.original));
  const auto found = dtype_from_name(*type);
  if (!found || !dtype_is_quantised(*found))
    fail("{}: its metadata '{}' is no quantised type (q8_0, q4_0, q4_1, ... are)", where, printable(*type));
  const std::string* shape = metadatum(file, entry.original + ".shape");
  Tensor view{*found, 2, {}, entry.tensor.data};
  if (!shape || !parse_pair(*shape, view.shape[0], view.shape[1]))
    fail("{}: its metadata '.shape' is '{}', expected 'rows,columns'", where, shape ? printable(*shape) : "");
  const DTypeInfo& info = dtype_info(*found);
  if (view.columns() % info.block != 0)
    fail("{}: {} columns are no whole blocks of {} ({})", where, view.columns(), info.block, info.name);
  if (view.bytes() != entry.tensor.bytes())
    fail("{}: {} of shape {} needs {} bytes, the tensor has {}", where, info.name, print_shape(shape_of(view)),
         view.bytes(), entry.tensor.bytes());
  if (reinterpret_cast<uintptr_t>(view.data) % alignof(uint16_t) != 0) {  // blocks begin with 16-bit scales
    copies_.push_back(std::make_unique<std::byte[]>(view.bytes()));
    std::memcpy(copies_.back().get(), view.data, view.bytes());
    view.data = copies_.back().get();
  }
  entry.tensor = view;
}

void HeadFile::read_token_map() {
  const bool medusa = config_.kind == Kind::kMedusa;
  const char* name = medusa ? "token_map" : "d2t";
  const Tensor* map = find(name);
  if (!map) return;
  const auto value = [&](int64_t i) {
    if (map->type == DType::kI64) return reinterpret_cast<const int64_t*>(map->data)[i];
    return static_cast<int64_t>(reinterpret_cast<const int32_t*>(map->data)[i]);
  };
  const int64_t vocab = config_.cell.vocab;
  std::vector<bool> taken(static_cast<size_t>(vocab));
  bool identity = config_.draft_vocab == config_.cell.vocab;
  token_map_.reserve(static_cast<size_t>(config_.draft_vocab));
  for (int64_t id = 0; id < config_.draft_vocab; ++id) {
    const int64_t given = value(id), base = medusa ? 0 : id;  // Medusa maps to ids, EAGLE-3 by offsets
    if (given < -base || given >= vocab - base)
      fail("{}: tensor '{}' maps draft id {} by {} to a token outside the vocabulary of {}", path_, name, id, given,
           vocab);
    const int64_t token = base + given;
    if (taken[static_cast<size_t>(token)]) fail("{}: tensor '{}' maps two draft ids to token {}", path_, name, token);
    taken[static_cast<size_t>(token)] = true;
    identity = identity && token == id;
    token_map_.push_back(static_cast<Token>(token));
  }
  if (identity) token_map_.clear();
  if (!token_map_.empty() && !config_.own_head)
    fail("{}: tensor '{}' renames tokens, but the head has no 'lm_head.weight' of its own", path_, name);
}

const Tensor* HeadFile::find(std::string_view canonical) const {
  for (const auto& entry : tensors_)
    if (entry.name == canonical) return &entry.tensor;
  return nullptr;
}

const Tensor& HeadFile::get(std::string_view canonical) const {
  const Tensor* found = find(canonical);
  SX_ASSERT(found != nullptr);
  return *found;
}

void HeadFile::release(const Tensor& tensor) const {
  if (model_) model_->release(tensor);
  for (const auto& file : files_) file.drop(tensor.data, tensor.bytes());
}

bool is_head_folder(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return false;
  for (const std::string& file : weight_files(path)) {
    const SafetensorsFile weights(file);
    for (const SafetensorsTensor& t : weights.tensors()) {
      const std::string name = canonical_head_name(t.name);
      if (name == "fc.weight" || name.starts_with("blocks.") || name.starts_with("lm_heads.") ||
          name.starts_with("layers.0.cross_attn.") || name == "pre_projection.weight")
        return true;
    }
  }
  return weight_files(path).empty() && !files_ending(path, {".bin", ".pt"}).empty();  // opening it says how to convert
}

}  // namespace sx
