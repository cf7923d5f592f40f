#include "bench/widen/widen.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "formats/family.h"
#include "model/convert/gguf_keys.h"
#include "formats/validate.h"
#include "model/rope.h"

namespace sx {
namespace {

struct Named {
  const char* name;
  WideShape shape;
};

constexpr Named kShapes[] = {{"llama-1b", {2048, 16, 32, 8, 64, 8192}},
                             {"llama-3b", {3072, 28, 24, 8, 128, 8192}},
                             {"llama-8b", {4096, 32, 32, 8, 128, 14336}},
                             {"llama-70b", {8192, 80, 64, 8, 128, 28672}}};

// Where dimension `dim` of a head of the old model sits in a head of the new one: its rotary pair on the pair of the
// same frequency; what is not rotated behind those.
int64_t place_in_head(const ModelConfig& from, int64_t dim, int64_t ratio, RopeStyle style) {
  const int64_t dims = from.rope.dims, half = dims / 2;
  if (dim >= dims) return dims * ratio + (dim - dims);
  const bool halves = from.rope.style == RopeStyle::kHalves;
  const int64_t pair = halves ? dim % half : dim / 2, part = halves ? dim / half : dim % 2;
  return style == RopeStyle::kInterleaved ? 2 * pair * ratio + part : pair * ratio + part * half * ratio;
}

// Old head -> new head: heads of one KV head stay together.
int64_t place_of_head(int64_t head, int64_t group, int64_t wide_group) {
  return head / group * wide_group + head % group;
}

void check_shape(const ModelConfig& from, const ModelConfig& to, const std::string& file) {
  const auto at_least = [&](const char* what, int old_size, int new_size) {
    if (new_size < old_size)
      fail("{}: the {} would shrink from {} to {}; a twin can only be larger", file, what, old_size, new_size);
  };
  at_least("width", from.width, to.width);
  at_least("number of layers", from.layers, to.layers);
  at_least("number of KV heads", from.kv_heads, to.kv_heads);
  at_least("feed-forward length", from.ffn, to.ffn);
  if (to.head_dim % from.head_dim != 0) {
    fail("{}: heads of {} do not embed in heads of {}: a multiple is needed, or the rotations differ", file,
         from.head_dim, to.head_dim);
  }
  if (to.heads % to.kv_heads != 0) fail("{} heads are not a multiple of {} KV heads", to.heads, to.kv_heads);
  if (to.heads / to.kv_heads < from.heads / from.kv_heads) {
    fail("{}: {} heads share a KV head, but only {} would in the twin", file, from.heads / from.kv_heads,
         to.heads / to.kv_heads);
  }
  if (from.qk_norm != HeadNorm::kNone)
    fail("{}: norms of q and k (qwen3) cannot be embedded: they would see the padding", file);
  if (from.rope.scaling == RopeScaling::kDynamic)
    fail("{}: dynamic RoPE scaling depends on the head size and cannot be embedded", file);
}

// All scalings but the dynamic one become explicit divisors of the frequencies of the plain base.
void embed_rope(const ModelConfig& from, int64_t ratio, RopeStyle style, ModelConfig& to, float& query_scale) {
  const RopeFrequencies old = rope_frequencies(from, from.context);
  RopeConfig rope;
  rope.style = style;
  rope.dims = from.rope.dims * static_cast<int>(ratio);
  rope.base = from.rope.base;
  if (from.rope.scaling != RopeScaling::kNone || !from.rope.factors.empty()) {
    rope.factors.assign(static_cast<size_t>(rope.dims / 2), 1.0f);
    for (size_t i = 0; i < old.frequencies.size(); ++i) {
      const double plain = std::pow(from.rope.base, -2.0 * static_cast<double>(i) / from.rope.dims);
      rope.factors[i * static_cast<size_t>(ratio)] = static_cast<float>(plain / old.frequencies[i]);
    }
  }
  query_scale *= old.factor * old.factor;  // yarn scales both q and k; a product needs it once
  to.rope = rope;
}

class Planner {
 public:
  Planner(const ModelFile& file, const WideMaps& maps, const TypeChoice& types, std::vector<std::string>& notes)
      : file_(file), maps_(maps), types_(types), notes_(notes) {}

  std::vector<TensorPlan> plan() {
    std::vector<TensorPlan> plans;
    for (const auto& expected : expected_tensors(maps_.config)) {
      TensorPlan plan;
      plan.out.name = expected.name;
      plan.out.shape = expected.shape;
      plan.out.type = choose_type(types_, plan.out, notes_);
      plan.source = file_.find(expected.name);  // null for layers that the model has not
      if (plan.source) embed(plan);
      plans.push_back(std::move(plan));
    }
    return plans;
  }

 private:
  void embed(TensorPlan& plan) {
    const std::string_view name = plan.out.name;
    const auto is = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
    const bool bias = name.ends_with(".bias");
    if (is("norm.weight")) {
      plan.columns = maps_.width;
      plan.scale = maps_.norm_scale;
    } else if (is("token_embd") || name.starts_with("output.")) {
      plan.columns = maps_.width;
    } else if (is(".attn_output.")) {
      place(plan, bias, maps_.width, maps_.attended);
    } else if (is(".ffn_down.")) {
      place(plan, bias, maps_.width, maps_.ffn);
    } else if (is(".ffn_")) {
      place(plan, bias, maps_.ffn, maps_.width);
    } else {
      const auto& rows = is(".attn_q.") ? maps_.query : is(".attn_k.") ? maps_.key : maps_.value;
      place(plan, bias, rows, maps_.width);
      if (is(".attn_q.")) plan.scale = maps_.query_scale;
    }
  }

  // A matrix by its rows (old -> new, here turned round) and columns; a bias has only the rows, as its elements.
  static void place(TensorPlan& plan, bool bias, const std::vector<int64_t>& rows,
                    const std::vector<int64_t>& columns) {
    if (bias) {
      plan.columns = rows;
      return;
    }
    plan.columns = columns;
    plan.rows = rows_from(rows, plan.out.shape[0]);
  }

  const ModelFile& file_;
  const WideMaps& maps_;
  const TypeChoice& types_;
  std::vector<std::string>& notes_;
};

std::vector<int64_t> same(int count) {
  std::vector<int64_t> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

}  // namespace

std::vector<int64_t> rows_from(const std::vector<int64_t>& places, int64_t count) {
  std::vector<int64_t> out(static_cast<size_t>(count), -1);
  for (size_t i = 0; i < places.size(); ++i) out[static_cast<size_t>(places[i])] = static_cast<int64_t>(i);
  return out;
}

WideShape named_shape(const std::string& name) {
  std::string known;
  for (const auto& entry : kShapes) {
    if (name == entry.name) return entry.shape;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.name);
  }
  fail("shape '{}' is not known; there are {}", name, known);
}

WideMaps wide_maps(const ModelConfig& from, const WideShape& shape, RopeStyle style, const std::string& file) {
  WideMaps maps;
  ModelConfig& to = maps.config;
  to = from;
  to.family = family_of_gguf("llama");
  to.arch_name = "llama";
  const auto set = [](int& size, int wanted) { size = wanted > 0 ? wanted : size; };
  set(to.width, shape.width), set(to.layers, shape.layers), set(to.heads, shape.heads),
      set(to.kv_heads, shape.kv_heads);
  set(to.head_dim, shape.head_dim), set(to.ffn, shape.ffn);
  check_shape(from, to, file);
  const int64_t ratio = to.head_dim / from.head_dim, head = from.head_dim, wide_head = to.head_dim;
  const double narrow = static_cast<double>(from.width) / to.width;
  to.norm_eps = static_cast<float>(static_cast<double>(from.norm_eps) * narrow);
  maps.norm_scale = static_cast<float>(std::sqrt(narrow));
  maps.query_scale = static_cast<float>(std::sqrt(static_cast<double>(ratio)));
  embed_rope(from, ratio, style, to, maps.query_scale);
  if (auto windowed = windowed_layers(from); !windowed.empty()) {
    windowed.resize(static_cast<size_t>(to.layers), 0);
    to.each.clear();
    set_windowed_layers(to, windowed);
  }
  validate_config(to, file);
  maps.width = same(from.width);
  maps.ffn = same(from.ffn);
  const int64_t group = from.heads / from.kv_heads, wide_group = to.heads / to.kv_heads;
  for (int64_t i = 0; i < from.heads * head; ++i) {
    const int64_t place = place_of_head(i / head, group, wide_group) * wide_head;
    maps.query.push_back(place + place_in_head(from, i % head, ratio, style));
    maps.attended.push_back(place + i % head);
  }
  for (int64_t i = 0; i < from.kv_heads * head; ++i) {
    maps.key.push_back(i / head * wide_head + place_in_head(from, i % head, ratio, style));
    maps.value.push_back(i / head * wide_head + i % head);
  }
  return maps;
}

ConvertReport widen_model(const ModelFile& file, const TokenizerData& vocabulary, const WideShape& shape,
                          const QuantizeJob& job) {
  const WideMaps maps = wide_maps(file.config(), shape, RopeStyle::kInterleaved, file.path());
  if (job.types.output && maps.config.tied_head) {
    fail("{}: the output head is the embedding; --embedding chooses the type of both", file.path());
  }
  std::vector<std::string> notes;
  auto plans = Planner(file, maps, job.types, notes).plan();
  add_rope_plan(maps.config, plans);
  GgufKeys keys;
  ModelConfig named = maps.config;
  named.name = fmt::format("{} (wide twin)", file.config().name.empty() ? "model" : file.config().name);
  add_config_keys(keys, named, job.types.matrices, file.path());
  add_tokenizer_keys(keys, vocabulary);
  ConvertReport report = write_gguf(file, keys, plans, job);
  report.notes.insert(report.notes.end(), notes.begin(), notes.end());
  return report;
}

}  // namespace sx
