// What is in a model file, for people.
#include <filesystem>
#include <map>

#include "base/error.h"
#include "formats/model_file.h"
#include "kv/types.h"
#include "specextend/engine.h"
#include "specextend/inspect.h"
#include "tensor/dtype.h"

namespace sx {
namespace {

std::string describe_rope(const ModelConfig& c) {
  const RopeConfig& r = c.rope;
  std::string text = fmt::format("base {}", r.base);
  if (r.dims != c.head_dim) text += fmt::format(", {} of {} dimensions", r.dims, c.head_dim);
  const char* names[] = {"", "linear", "dynamic", "llama3", "yarn", "longrope"};
  if (r.scaling != RopeScaling::kNone) text += fmt::format(", {} x{}", names[int(r.scaling)], r.factor);
  if (r.scaling != RopeScaling::kNone && r.original_context > 0) text += fmt::format(" from {}", r.original_context);
  if (!r.factors.empty()) text += ", explicit factors";
  return text;
}

}  // namespace

size_t ModelSummary::kv_bytes(int tokens, std::string_view kv_type) const {
  const KvTypes type = kv_types_from_name(kv_type, DType::kBF16);
  const size_t cells = size_t((tokens + 63) / 64 * 64);
  const int64_t per_head = (head_dim + 31) / 32 * 32;
  return cells * size_t(layers) * size_t(kv_heads) *
         (dtype_bytes(type.keys, per_head) + dtype_bytes(type.values, per_head));
}

ModelSummary inspect(const std::string& model) {
  const auto file = ModelFile::open_any(model.empty() ? default_model_path() : model);
  const ModelConfig& c = file->config();
  ModelSummary s;
  s.path = file->path();
  s.format = file->format();
  s.name = c.name;
  s.architecture = c.arch_name;
  s.layers = c.layers;
  s.width = c.width;
  s.heads = c.heads;
  s.kv_heads = c.kv_heads;
  s.head_dim = c.head_dim;
  s.ffn = c.ffn;
  s.vocab = c.vocab;
  s.context = c.context;
  s.window = c.window;
  s.tied_head = c.tied_head;
  s.unsupported = file->unsupported();
  if (s.unsupported.empty()) s.rope = describe_rope(c);
  s.parameters = 0;
  s.weight_bytes = 0;
  std::map<std::string, int> types;
  std::map<std::string, size_t> files;
  for (const NamedTensor& t : file->tensors()) {
    s.parameters += uint64_t(t.tensor.elements());
    s.weight_bytes += t.tensor.bytes();
    ++types[dtype_name(t.tensor.type)];
    std::error_code ignored;
    if (!files.count(t.file)) files[t.file] = std::filesystem::file_size(t.file, ignored);
    s.tensors.push_back({t.name, dtype_name(t.tensor.type),
                         std::vector<int64_t>(t.tensor.shape.begin(), t.tensor.shape.begin() + t.tensor.rank),
                         t.tensor.bytes()});
  }
  s.file_bytes = 0;
  if (std::error_code ignored; files.empty() && std::filesystem::is_regular_file(s.path, ignored))
    files[s.path] = std::filesystem::file_size(s.path, ignored);
  for (const auto& [name, bytes] : files) s.file_bytes += bytes;
  for (const auto& [type, count] : types) s.types += fmt::format("{}{} {}", s.types.empty() ? "" : ", ", type, count);
  const TokenizerData& t = file->tokenizer();
  if (!t.tokenizer_json.empty()) s.tokenizer = "tokenizer.json";
  else if (!t.sentencepiece.empty()) s.tokenizer = "tokenizer.model";
  else s.tokenizer = fmt::format("{}{}{}, {} tokens", t.model, t.pre.empty() ? "" : " / ", t.pre, t.tokens.size());
  for (const Metadatum& m : file->metadata()) s.metadata.emplace_back(m.key, m.value);
  return s;
}

}  // namespace sx
