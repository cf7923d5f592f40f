#include "formats/expert_tensors.h"

#include <fmt/format.h>

#include <algorithm>

namespace sx {

void find_expert_form(std::span<const NamedTensor> tensors, ModelConfig& config) {
  const auto any = [&](std::string_view part) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const NamedTensor& t) { return t.name.starts_with("blk.") && t.name.ends_with(part); });
  };
  config.expert_form = any(".ffn_gate_up_exps.blocks")   ? ExpertForm::kBlocks
                       : any(".ffn_gate_up_exps.weight") ? ExpertForm::kFused
                       : any(".ffn_gate.0.weight")       ? ExpertForm::kSeparate
                                                         : ExpertForm::kStacked;
}

void expect_experts(const ModelConfig& config, const LayerParts& p, const std::string& prefix,
                    std::vector<ExpectedTensor>& out) {
  const int64_t width = config.width, ffn = p.ffn, experts = p.experts;
  const auto add = [&](std::string_view name, std::vector<int64_t> shape, bool bytes = false) {
    out.push_back({fmt::format("{}{}", prefix, name), std::move(shape), bytes});
  };
  add("ffn_gate_inp.weight", {experts, width});
  if (p.router_bias) add("ffn_gate_inp.bias", {experts});
  if (p.routing == Routing::kSigmoid) add("exp_probs_b.bias", {experts});
  switch (config.expert_form) {
    case ExpertForm::kStacked:
      add("ffn_gate_exps.weight", {experts, ffn, width});
      add("ffn_up_exps.weight", {experts, ffn, width});
      add("ffn_down_exps.weight", {experts, width, ffn});
      break;
    case ExpertForm::kSeparate:
      for (int64_t e = 0; e < experts; ++e) {
        add(fmt::format("ffn_gate.{}.weight", e), {ffn, width});
        add(fmt::format("ffn_up.{}.weight", e), {ffn, width});
        add(fmt::format("ffn_down.{}.weight", e), {width, ffn});
      }
      break;
    case ExpertForm::kFused:
      add("ffn_gate_up_exps.weight", {experts, width, 2 * ffn});
      add("ffn_down_exps.weight", {experts, ffn, width});
      break;
    case ExpertForm::kBlocks:
      add("ffn_gate_up_exps.blocks", {experts, 2 * ffn, width / 32, 16}, true);
      add("ffn_gate_up_exps.scales", {experts, 2 * ffn, width / 32}, true);
      add("ffn_down_exps.blocks", {experts, width, ffn / 32, 16}, true);
      add("ffn_down_exps.scales", {experts, width, ffn / 32}, true);
      break;
  }
  if (!p.expert_bias) return;
  if (config.expert_form == ExpertForm::kFused || config.expert_form == ExpertForm::kBlocks) {
    add("ffn_gate_up_exps.bias", {experts, 2 * ffn});
  } else {
    add("ffn_gate_exps.bias", {experts, ffn});
    add("ffn_up_exps.bias", {experts, ffn});
  }
  add("ffn_down_exps.bias", {experts, width});
}

}  // namespace sx
