// Checks shared by all model formats.
#include "formats/validate.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/printable.h"
#include "formats/expert_tensors.h"

namespace sx {
namespace {

void in_range(int value, int low, int high, const char* field, const std::string& file) {
  if (value < low || value > high) fail("{}: {} is {}; {} to {} is accepted", file, field, value, low, high);
}

void positive(double value, const char* field, const std::string& file) {
  if (!(std::isfinite(value) && value > 0))
    fail("{}: {} is {}; a finite positive number is expected", file, field, value);
}

void not_negative(double value, const char* field, const std::string& file) {
  if (!(std::isfinite(value) && value >= 0)) fail("{}: {} is {}; a finite number >= 0 is expected", file, field, value);
}

void validate_rope(const ModelConfig& config, const RopeConfig& rope, const std::string& file) {
  if (rope.dims < 2 || rope.dims > config.head_dim || rope.dims % 2 != 0) {
    fail("{}: the RoPE dimension count is {}; an even number from 2 to the head size {} is expected", file, rope.dims,
         config.head_dim);
  }
  positive(rope.base, "the RoPE base frequency", file);
  if (rope.base <= 1) fail("{}: the RoPE base frequency is {}; more than 1 is expected", file, rope.base);
  positive(rope.factor, "the RoPE scaling factor", file);
  if (rope.factor > 1e6) fail("{}: the RoPE scaling factor {} is absurd", file, rope.factor);
  in_range(rope.original_context, 0, 1 << 30, "the RoPE original context length", file);
  positive(rope.low_frequency_factor, "the RoPE low frequency factor", file);
  positive(rope.high_frequency_factor, "the RoPE high frequency factor", file);
  if (rope.scaling == RopeScaling::kLlama3 && rope.high_frequency_factor <= rope.low_frequency_factor) {
    fail("{}: the RoPE high frequency factor {} is not above the low one {}", file, rope.high_frequency_factor,
         rope.low_frequency_factor);
  }
  positive(rope.beta_fast, "the RoPE yarn beta_fast", file);
  positive(rope.beta_slow, "the RoPE yarn beta_slow", file);
  not_negative(rope.attention_factor, "the RoPE attention factor", file);
  not_negative(rope.mscale, "the RoPE mscale", file);
  not_negative(rope.mscale_all_dim, "the RoPE mscale_all_dim", file);
  if (rope.scaling == RopeScaling::kDynamic && rope.dims < 4) {
    fail("{}: dynamic RoPE scaling needs at least 4 rotated dimensions, not {}", file, rope.dims);
  }
  if (!rope.factors.empty() && rope.factors.size() != static_cast<size_t>(rope.dims / 2)) {
    fail("{}: {} RoPE frequency divisors for {} rotated dimensions", file, rope.factors.size(), rope.dims);
  }
  for (const float factor : rope.factors) positive(factor, "a RoPE frequency divisor", file);
  if (rope.scaling != RopeScaling::kLongRope) return;
  if (rope.factors.empty() || rope.factors.size() != rope.long_factors.size())
    fail("{}: longrope needs {} short and {} long divisors; there are {} and {}", file, rope.dims / 2, rope.dims / 2,
         rope.factors.size(), rope.long_factors.size());
  for (const float factor : rope.long_factors) positive(factor, "a RoPE frequency divisor", file);
}

void validate_layer(const ModelConfig& config, const LayerParts& p, const std::string& file) {
  in_range(p.heads, 1, 4096, "the number of attention heads", file);
  in_range(p.kv_heads, 1, p.heads, "the number of KV heads", file);
  if (p.heads % p.kv_heads != 0) {
    fail("{}: {} attention heads are not a multiple of {} KV heads", file, p.heads, p.kv_heads);
  }
  in_range(p.head_dim, 2, 1024, "the head size", file);
  if (p.head_dim % 2 != 0) fail("{}: the head size {} is odd", file, p.head_dim);
  in_range(p.ffn, 1, 1 << 20, "the feed-forward length", file);
  in_range(p.window, 0, 1 << 30, "the sliding window", file);
  in_range(p.rope, kNoRope, config.ropes() - 1, "a layer's RoPE", file);
  not_negative(p.attention_scale, "the attention scale", file);
  not_negative(p.attention_soft_cap, "the soft cap of attention", file);
  if (p.heads != config.heads || p.kv_heads != config.kv_heads || p.head_dim != config.head_dim || p.ffn != config.ffn)
    fail("{}: heads or feed-forward lengths differ between layers, which is not supported", file);
}

void validate_experts(const LayerParts& p, const std::string& file) {
  in_range(p.experts, 0, kMostExperts, "the number of experts", file);
  if (p.experts == 0) return;
  in_range(p.experts_used, 1, std::min(p.experts, kMostUsedExperts), "the number of experts that a token uses", file);
  positive(p.expert_scale, "the scale of experts", file);
  not_negative(p.swiglu_limit, "the limit of SwiGLU", file);
  if (!p.gated || p.activation != Activation::kSilu || p.mlp_bias || p.parallel)
    fail("{}: experts whose feed-forward is no SwiGLU are not supported", file);
}

bool is_float(DType type) { return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16; }

std::string print_shape(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::span<const int64_t> shape_of(const Tensor& tensor) {
  return std::span<const int64_t>(tensor.shape).first(static_cast<size_t>(tensor.rank));
}

// Empty if `found` is as expected, else one sentence.
std::string complaint(const ExpectedTensor& expected, const NamedTensor& found) {
  const auto shape = shape_of(found.tensor);
  const auto where = fmt::format("{}: tensor '{}'", found.file, printable(found.original));
  if (!std::equal(shape.begin(), shape.end(), expected.shape.begin(), expected.shape.end())) {
    return fmt::format("{} has shape {}, expected {}", where, print_shape(shape), print_shape(expected.shape));
  }
  const DType type = found.tensor.type;
  if (expected.shape.size() == 1 && !is_float(type)) {
    return fmt::format("{} has type {}, expected F32, F16 or BF16", where, dtype_name(type));
  }
  if (expected.bytes && type == DType::kI8) return {};
  if (!is_float(type) && !dtype_is_quantised(type)) {
    return fmt::format("{} has type {}, expected a floating-point or quantised type", where, dtype_name(type));
  }
  return {};
}

void check_id(int32_t id, const char* field, const TokenizerData& data) {
  if (id < -1 || id >= data.vocab) {
    fail("{}: the {} token id is {}, outside the vocabulary of {}", data.file, field, id, data.vocab);
  }
}

}  // namespace

void validate_config(const ModelConfig& config, const std::string& file) {
  in_range(config.layers, 1, kMostLayers, "the number of layers", file);
  in_range(config.width, 1, 131072, "the width (embedding length)", file);
  in_range(config.vocab, 1, 4 << 20, "the vocabulary size", file);
  in_range(config.context, 1, 1 << 30, "the context length", file);
  if (!(config.norm_eps > 0 && config.norm_eps < 1)) {
    fail("{}: the RMS norm epsilon is {}; a number between 0 and 1 is expected", file, config.norm_eps);
  }
  validate_layer(config, config, file);
  validate_experts(config, file);
  if (!config.each.empty() && config.each.size() != static_cast<size_t>(config.layers)) {
    fail("{}: {} layers are described, the model has {}", file, config.each.size(), config.layers);
  }
  for (const LayerParts& parts : config.each) {
    validate_layer(config, parts, file);
    validate_experts(parts, file);
  }
  for (int i = 0; i < config.ropes(); ++i) validate_rope(config, config.rope_at(i), file);
  positive(config.embedding_scale, "the scale of embeddings", file);
  positive(config.residual_scale, "the scale of residuals", file);
  positive(config.logit_scale, "the scale of logits", file);
  not_negative(config.final_soft_cap, "the soft cap of logits", file);
  not_negative(config.query_growth, "the growth of queries", file);
  if (config.query_growth > 0) in_range(config.query_period, 1, 1 << 30, "the period of growing queries", file);
}

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  const int64_t width = config.width, vocab = config.vocab;
  std::vector<ExpectedTensor> out;
  const auto add_norm = [&](const std::string& name) {
    out.push_back({name + ".weight", {width}});
    if (config.norm_bias) out.push_back({name + ".bias", {width}});
  };
  out.push_back({"token_embd.weight", {vocab, width}});
  for (int layer = 0; layer < config.layers; ++layer) {
    const LayerParts& p = config.layer(layer);
    const int64_t head = p.head_dim, q = p.heads * head, kv = p.kv_heads * head, ffn = p.ffn;
    const auto named = [&](const char* name) { return fmt::format("blk.{}.{}", layer, name); };
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      out.push_back({named(name), std::move(shape)});
    };
    if (p.attention_norm) add_norm(named("attn_norm"));
    add("attn_q.weight", {q, width});
    add("attn_k.weight", {kv, width});
    add("attn_v.weight", {kv, width});
    if (p.qkv_bias) {
      add("attn_q.bias", {q});
      add("attn_k.bias", {kv});
      add("attn_v.bias", {kv});
    }
    if (p.qk_norm != HeadNorm::kNone) {
      const bool whole = p.qk_norm == HeadNorm::kWhole;
      add("attn_q_norm.weight", {whole ? q : head});
      add("attn_k_norm.weight", {whole ? kv : head});
    }
    if (p.sinks) add("attn_sinks.weight", {p.heads});
    add("attn_output.weight", {width, q});
    if (p.out_bias) add("attn_output.bias", {width});
    if (p.attention_post_norm) add_norm(named("post_attention_norm"));
    if (p.ffn_norm && !p.parallel) add_norm(named("ffn_norm"));
    if (p.experts > 0) {
      expect_experts(config, p, fmt::format("blk.{}.", layer), out);
      if (p.ffn_post_norm) add_norm(named("post_ffw_norm"));
      continue;
    }
    if (p.gated) add("ffn_gate.weight", {ffn, width});
    add("ffn_up.weight", {ffn, width});
    add("ffn_down.weight", {width, ffn});
    if (p.mlp_bias) {
      if (p.gated) add("ffn_gate.bias", {ffn});
      add("ffn_up.bias", {ffn});
      add("ffn_down.bias", {width});
    }
    if (p.ffn_post_norm) add_norm(named("post_ffw_norm"));
  }
  add_norm("output_norm");
  if (!config.tied_head) out.push_back({"output.weight", {vocab, width}});
  return out;
}

void validate_tensors(const ModelConfig& config, std::span<const NamedTensor> tensors, const std::string& file) {
  std::unordered_map<std::string_view, const NamedTensor*> found;
  for (const auto& entry : tensors) {
    if (!found.emplace(entry.name, &entry).second) {
      fail("{}: two tensors are '{}' ('{}' and '{}')", file, entry.name, printable(found[entry.name]->original),
           printable(entry.original));
    }
  }
  std::vector<std::string> complaints;
  for (const auto& expected : expected_tensors(config)) {
    const auto at = found.find(expected.name);
    if (at == found.end()) {
      complaints.push_back(
          fmt::format("{}: tensor '{}' of shape {} is missing", file, expected.name, print_shape(expected.shape)));
      continue;
    }
    if (auto text = complaint(expected, *at->second); !text.empty()) complaints.push_back(std::move(text));
    found.erase(at);
  }
  for (const char* divisors : {"rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"})
    found.erase(divisors);  // read into the configuration
  for (const auto& entry : tensors) {
    if (!found.contains(entry.name)) continue;
    // Ignoring it could mean computing something else than the model does.
    complaints.push_back(fmt::format("{}: tensor '{}' is not part of this architecture ({})", entry.file,
                                     printable(entry.original), config.arch_name));
  }
  if (complaints.empty()) return;
  constexpr size_t kShown = 6;
  const size_t shown = std::min(complaints.size(), kShown);
  std::string text = fmt::format("{}", fmt::join(std::span(complaints).first(shown), "; "));
  if (complaints.size() > shown) text += fmt::format("; and {} more", complaints.size() - shown);
  throw Error(text);
}

void validate_tokenizer(const TokenizerData& data) {
  check_id(data.bos, "bos", data);
  check_id(data.eos, "eos", data);
  check_id(data.eot, "eot", data);
  check_id(data.unk, "unknown", data);
  check_id(data.pad, "padding", data);
  const size_t count = data.tokens.size();
  if (count > static_cast<size_t>(data.vocab)) {
    fail("{}: {} tokens are listed, but the embedding has only {} rows", data.file, count, data.vocab);
  }
  if (!data.scores.empty() && data.scores.size() != count) {
    fail("{}: {} token scores for {} tokens", data.file, data.scores.size(), count);
  }
  if (!data.types.empty() && data.types.size() != count) {
    fail("{}: {} token types for {} tokens", data.file, data.types.size(), count);
  }
}

}  // namespace sx
