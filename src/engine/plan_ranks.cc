// What each rank of a job would hold and send: for `inspect --ranks`. Nothing of the weights is read, and a folder with
// a config.json alone is enough.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "backend/ranks/ranks.h"
#include "base/error.h"
#include "formats/hf_config.h"
#include "formats/model_file.h"
#include "formats/validate.h"
#include "kv/types.h"
#include "specextend/ranks.h"

namespace sx {
namespace {

constexpr size_t kFirstPiece = 1024;  // of the message that announces a step

struct Sized {
  std::string name;
  size_t bytes;
};

struct Shape {
  ModelConfig config;
  std::vector<Sized> tensors;
};

DType type_named(const std::string& name, const char* what) {
  const auto type = dtype_from_name(name);
  if (!type) fail("{} '{}' is not known", what, name);
  return *type;
}

// A folder without weights: the tensors that its configuration asks for.
Shape from_config(const std::string& folder, const std::string& weight_type) {
  const std::string file = folder + "/config.json";
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  Shape model;
  model.config = config_from_json(text.str(), file);
  validate_config(model.config, file);
  const DType type = type_named(weight_type.empty() ? "bf16" : weight_type, "the type of weights");
  for (const ExpectedTensor& tensor : expected_tensors(model.config)) {
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    model.tensors.push_back({tensor.name, dtype_bytes(tensor.shape.size() == 1 ? DType::kF32 : type, count)});
  }
  return model;
}

Shape open(const std::string& path, const std::string& weight_type) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const bool bare = fs::exists(fs::path(path) / "config.json", ignored) &&
                    !fs::exists(fs::path(path) / "model.safetensors", ignored) &&
                    !fs::exists(fs::path(path) / "model.safetensors.index.json", ignored);
  if (bare) return from_config(path, weight_type);
  if (!weight_type.empty()) fail("'{}' has weights: their type cannot be chosen", path);
  const auto file = ModelFile::open(path);
  Shape model{file->config(), {}};
  for (const NamedTensor& tensor : file->tensors()) model.tensors.push_back({tensor.name, tensor.tensor.bytes()});
  return model;
}

// The layer of "blk.12.attn_q.weight", or -1.
int layer_of(const std::string& name) { return name.starts_with("blk.") ? std::stoi(name.substr(4)) : -1; }

bool has_any(const std::string& name, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    if (name.find(part) != name.npos) return true;
  return false;
}

// Bytes of a tensor that a rank holds where columns are divided.
size_t column_bytes(const Sized& tensor, const ModelConfig& c, int rank, int ranks) {
  const auto part = [&](const RankCut& cut) {
    return tensor.bytes / size_t(cut.width()) * size_t(cut.of(rank, ranks).size());
  };
  const std::string& name = tensor.name;
  const RankCut heads{.total = c.kv_heads};
  if (has_any(name, {".attn_q_norm", ".attn_k_norm", ".ffn_gate_inp"})) return tensor.bytes;
  if (has_any(name, {".attn_q.", ".attn_k.", ".attn_v.", ".attn_sinks."})) return part(heads);
  if (has_any(name, {".attn_output.", ".ffn_down"})) return part(column_cut(c.width, ranks));
  if (has_any(name, {".ffn_gate", ".ffn_up"})) return part(column_cut(c.ffn, ranks));
  if (name == "output.weight") return part(column_cut(c.vocab, ranks));
  return tensor.bytes;
}

// What a rank sends while one token of a text is decoded.
void count_traffic(const ModelConfig& c, bool columns, int ranks, RankPart& part) {
  const size_t others = size_t(ranks - 1), number = sizeof(float);
  const bool first = part.rank == 0, last = part.rank == ranks - 1;
  if (ranks == 1) return;
  if (!columns) {
    if (!last) part.messages = 2, part.sent_bytes = kFirstPiece + size_t(c.width) * number;
    if (last) part.messages = 1, part.sent_bytes = size_t(c.vocab) * number;
    return;
  }
  const auto own = [&](const RankCut& cut) { return size_t(cut.of(part.rank, ranks).size()); };
  const auto gather = [&](size_t values) {
    if (values == 0) return;
    part.messages += others, part.sent_bytes += others * values * number;
  };
  if (first) part.messages = others, part.sent_bytes = others * kFirstPiece;
  for (int i = 0; i < c.layers; ++i) {
    const LayerParts& p = c.layer(i);
    const size_t q = own({.total = p.kv_heads, .scale = p.heads / p.kv_heads * p.head_dim}),
                 k = own({.total = p.kv_heads, .scale = p.head_dim}), width = own(column_cut(c.width, ranks)),
                 ffn = own(column_cut(p.ffn, ranks));
    if (p.qk_norm == HeadNorm::kWhole) gather(q), gather(k);
    gather(q);
    gather(width);
    gather(p.experts > 0 ? ffn * size_t(p.experts_used) : ffn);
    gather(width);
  }
  if (!first) part.messages += 1, part.sent_bytes += own(column_cut(c.vocab, ranks)) * number;
}

}  // namespace

RankPlan plan_ranks(const std::string& path, int ranks, const std::string& split, const std::string& kv_type,
                    const std::string& weight_type) {
  const bool columns = split_from_name(split) == RankSplit::kColumns;
  if (ranks < 1 || ranks > 64) fail("{} ranks: 1 to 64 can be planned", ranks);
  const Shape model = open(path, weight_type);
  const ModelConfig& c = model.config;
  const KvTypes kv = kv_types_from_name(kv_type, DType::kBF16);
  RankPlan plan;
  for (int r = 0; r < ranks; ++r) {
    const RankShare layers = columns ? RankShare{0, c.layers} : RankCut{.total = c.layers}.of(r, ranks);
    const RankShare heads = columns ? RankCut{.total = c.kv_heads}.of(r, ranks) : RankShare{0, c.kv_heads};
    RankPart part{.rank = r,
                  .first_layer = layers.first,
                  .layers = layers.size(),
                  .first_kv_head = heads.first,
                  .kv_heads = heads.size()};
    for (const Sized& tensor : model.tensors) {
      const int layer = layer_of(tensor.name);
      if (tensor.name == "token_embd.weight") {
        if (columns || r == 0) part.table_bytes = tensor.bytes;
        const size_t head =
            columns ? tensor.bytes / size_t(c.vocab) * size_t(column_cut(c.vocab, ranks).of(r, ranks).size())
                    : tensor.bytes;
        if (c.tied_head && (columns || r == ranks - 1)) part.weight_bytes += head;
      } else if (columns) {
        part.weight_bytes += column_bytes(tensor, c, r, ranks);
      } else if (layer >= 0 ? layers.has(layer) : tensor.name != "output.weight" || r == ranks - 1) {
        part.weight_bytes += tensor.bytes;
      }
    }
    part.kv_bytes_per_token = (dtype_bytes(kv.keys, c.head_dim) + dtype_bytes(kv.values, c.head_dim)) *
                              size_t(part.kv_heads) * size_t(part.layers);
    count_traffic(c, columns, ranks, part);
    plan.parts.push_back(part);
  }
  plan.layers = c.layers, plan.kv_heads = c.kv_heads;
  return plan;
}

}  // namespace sx
