#include "model/convert/quantize_head.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "model/convert/new_folder.h"
#include "base/json_text.h"
#include "formats/safetensors_writer.h"

namespace sx {
namespace {

constexpr size_t kMaxConfig = size_t{16} << 20;  // bytes of config.json

std::string config_path(const std::string& folder) { return (std::filesystem::path(folder) / "config.json").string(); }

bool is_matrix(const NamedTensor& tensor) {
  const DType type = tensor.tensor.type;
  return tensor.tensor.rank == 2 && tensor.name != "mask_hidden" && (dtype_is_float(type) || dtype_is_quantised(type));
}

TensorPart part_of(std::string_view canonical) {
  if (canonical == "embed_tokens.weight") return TensorPart::kEmbedding;
  return canonical.starts_with("lm_head") ? TensorPart::kOutput : TensorPart::kMatrix;
}

// Tables of integers that only others read (t2d): drafting does not need them, the folder keeps them.
std::vector<NamedTensor> unread_tables(const std::vector<SafetensorsFile>& files, const HeadFile& head) {
  std::set<std::string_view> read;
  for (const NamedTensor& tensor : head.tensors()) read.insert(tensor.original);
  std::vector<NamedTensor> out;
  for (const SafetensorsFile& file : files) {
    for (const SafetensorsTensor& t : file.tensors()) {
      if (read.contains(t.name) || dtype_is_float(t.tensor.type) || t.tensor.type == DType::kF64) continue;
      out.push_back({canonical_head_name(t.name), t.name, file.path(), t.tensor});
    }
  }
  return out;
}

// Large elements first, blocks last: then all data lie at multiples of their element size.
int place_of(DType type) { return dtype_is_quantised(type) ? 0 : dtype_info(type).bytes; }

void refuse_same_folder(const std::string& in, const std::string& out) {
  std::error_code ignored;
  if (std::filesystem::equivalent(in, out, ignored)) fail("'{}' would overwrite itself", out);
}

}  // namespace

std::shared_ptr<HeadFile> open_head_alone(const std::string& folder) {
  const std::string file = config_path(folder);
  const std::string text = read_text_file_if_any(file, kMaxConfig);
  ModelConfig target;
  target.layers = 1024;
  if (!text.empty()) {  // else opening says what is missing
    const Json json = parse_json(text, file);
    const Json* nested = json_member(json, "transformer_layer_config");
    if (!nested) nested = json_member(json, "text_config");  // of an assistant
    const Json& cell = nested ? *nested : json;
    const auto number = [&](const Json& object, const char* key) {
      const int64_t value = json_int(object, key, file).value_or(0);
      return value > 0 && value < (1 << 30) ? static_cast<int>(value) : 0;
    };
    const int width = std::max(number(json, "target_hidden_size"), number(json, "backbone_hidden_size"));
    target.width = width > 0 ? width : number(cell, "hidden_size");
    target.vocab = number(cell, "vocab_size");
    const int heads = number(cell, "num_attention_heads"), kv_heads = number(cell, "num_key_value_heads"),
              dim = number(cell, "head_dim");
    target.kv_heads = kv_heads > 0 ? kv_heads : heads;
    target.head_dim = dim > 0 ? dim : target.width / std::max(1, heads);
    target.context = number(cell, "max_position_embeddings");
    if (const int window = number(cell, "sliding_window"))  // the target of an assistant has layers of both kinds
      target.each.assign(size_t(target.layers), target), target.each[0].window = window;
    if (target.width == 0 || target.vocab == 0)
      fail("{}: without its target a head must say its 'hidden_size' and 'vocab_size'", file);
  }
  return HeadFile::open(folder, target);
}

ConvertReport quantize_head(const std::string& folder, const QuantizeJob& job) {
  check_types(job);
  const auto head = open_head_alone(folder);
  std::set<std::string> names;
  for (const NamedTensor& tensor : head->tensors()) names.insert(tensor.file);
  std::vector<SafetensorsFile> files;
  for (const std::string& name : names) files.emplace_back(name);
  const auto tables = unread_tables(files, *head);

  ConvertReport report;
  std::vector<TensorPlan> plans;
  const auto add = [&](const NamedTensor& source) {
    const Tensor& t = source.tensor;
    TensorPlan plan;
    plan.source = &source;
    plan.out = {source.original, t.type, {t.shape.begin(), t.shape.begin() + t.rank}};
    if (is_matrix(source)) plan.out.type = choose_type(job.types, plan.out, part_of(source.name), report.notes);
    check_source(source, plan.out.type, job.types.requantise);
    plans.push_back(std::move(plan));
  };
  for (const NamedTensor& tensor : head->tensors()) add(tensor);
  for (const NamedTensor& tensor : tables) add(tensor);
  check_singles(job.types, plans, folder);
  if (job.types.embedding && !head->find("embed_tokens.weight"))
    fail("{}: the head has no embedding of its own whose type could be chosen", folder);
  std::stable_sort(plans.begin(), plans.end(), [](const TensorPlan& a, const TensorPlan& b) {
    return place_of(a.out.type) > place_of(b.out.type);
  });

  report.path = job.out;
  report.tensors = outputs_of(plans);
  for (const auto& tensor : report.tensors) report.bytes += tensor.bytes();
  if (job.dry_run) return report;
  refuse_same_folder(folder, job.out);
  NewFolder made(job.out, job.force);
  SafetensorsOutput out(job.out, report.tensors, job.force);
  write_tensors([&](const Tensor& tensor) { head->release(tensor); }, plans, out, job.write);
  out.finish();
  write_text_file(config_path(job.out), read_text_file(config_path(folder), kMaxConfig), job.force);
  made.kept = true;
  return report;
}

}  // namespace sx
