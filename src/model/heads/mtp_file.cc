// MTP blocks inside a model's file as a draft head.
#include <algorithm>

#include "base/error.h"
#include "formats/hf_config.h"
#include "formats/mtp_tensors.h"
#include "model/heads/head_file.h"

namespace sx {
namespace {

// Parts of the target's layers that a block would have too and that the pass of heads does not know; null: none.
const char* unknown_part(const ModelConfig& c, const LayerParts& p) {
  if (c.centred_norms || c.norm_offset != 0) return "norms that are no plain RMS norms";
  if (!p.attention_norm || !p.ffn_norm || p.attention_post_norm || p.ffn_post_norm || p.parallel)
    return "norms behind attention or feed-forward";
  if (c.embedding_scale != 1 || c.residual_scale != 1 || c.logit_scale != 1 || c.final_soft_cap != 0)
    return "scales of embeddings, residuals or logits";
  if (p.qk_norm == HeadNorm::kWhole || p.qk_norm == HeadNorm::kBehind || p.sinks || p.attention_soft_cap != 0 ||
      p.attention_scale != 0)
    return "attention with sinks, soft caps, other scales or norms behind RoPE or of all heads at once";
  if (c.query_growth != 0) return "queries that grow with their position";
  if (p.rope != 0) return "another RoPE than the other layers";
  if (!p.gated) return "a feed-forward without a gate";
  return nullptr;
}

HeadConfig mtp_config(const ModelFile& file) {
  const ModelConfig& target = file.config();
  const auto block = [&](std::string_view part) {
    return file.find(fmt::format("blk.{}.{}", target.layers, part)) != nullptr;
  };
  if (target.mtp_blocks == 0)
    fail("'{}' has no MTP block (multi-token prediction) that could draft: take another preset, such as suffix",
         file.path());
  HeadConfig config;
  config.kind = HeadConfig::Kind::kMtp;
  config.cell = target;
  static_cast<LayerParts&>(config.cell) = target.layer(target.layers - 1);
  config.cell.each.clear();
  config.cell.layers = target.mtp_blocks;
  const char* unknown = unknown_part(target, config.cell);
  if (block("ffn_gate_inp.weight")) unknown = "mixtures of experts";
  if (unknown) fail("'{}': its MTP block cannot draft: blocks with {} are not supported", file.path(), unknown);
  config.cell.experts = 0;
  config.cell.window = 0;
  config.cell.qkv_bias = block("attn_q.bias");
  config.cell.out_bias = block("attn_output.bias");
  config.cell.mlp_bias = block("ffn_gate.bias");
  config.target_width = target.width;
  config.draft_vocab = target.vocab;
  config.features = {target.layers};
  config.own_embedding = block("nextn.embed_tokens.weight");
  config.own_head = block("nextn.shared_head_head.weight");
  config.own_final_norm = block("nextn.shared_head_norm.weight");
  config.state_first = target.mtp_state_first;
  config.norm_output = true;
  return config;
}

// "blk.36.attn_q.weight" -> "layers.0.self_attn.q_proj.weight" of the first block behind 36 layers.
std::string mtp_head_name(std::string_view name, int block, int layers) {
  const std::string prefix = fmt::format("blk.{}.", layers + block);
  const std::string_view part = name.substr(prefix.size());
  if (part == "nextn.embed_tokens.weight") return "embed_tokens.weight";
  if (part == "nextn.shared_head_head.weight") return "lm_head.weight";
  if (part == "nextn.shared_head_norm.weight") return fmt::format("layers.{}.norm.weight", block);
  constexpr std::string_view kOwn = "nextn.";
  if (part.starts_with(kOwn)) return fmt::format("layers.{}.{}", block, part.substr(kOwn.size()));
  const auto usual = hf_name(fmt::format("blk.{}.{}", block, part));  // as in a Llama's folder
  constexpr std::string_view kModel = "model.";
  return usual ? usual->substr(kModel.size()) : std::string(name);
}

}  // namespace

HeadFile::HeadFile(std::shared_ptr<const ModelFile> model)
    : path_(model->path()), model_(std::move(model)), config_(mtp_config(*model_)) {
  const int layers = model_->config().layers;
  for (int block = 0; block < config_.cell.layers; ++block) {
    const std::string prefix = fmt::format("blk.{}.", layers + block);
    for (const NamedTensor& tensor : model_->tensors()) {
      if (!tensor.name.starts_with(prefix)) continue;
      NamedTensor own = tensor;
      own.name = mtp_head_name(tensor.name, block, layers);
      // Blocks share embedding and output head; files repeat them in each.
      const bool shared = own.name == "embed_tokens.weight" || own.name == "lm_head.weight";
      if (!shared || block == 0) tensors_.push_back(std::move(own));
    }
  }
  check_head_tensors(tensors_, config_, path_);
}

std::shared_ptr<HeadFile> HeadFile::of_model(std::shared_ptr<const ModelFile> model) {
  return std::shared_ptr<HeadFile>(new HeadFile(std::move(model)));
}

}  // namespace sx
