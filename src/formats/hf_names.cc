// Hugging Face tensor names to canonical (GGUF) ones and back.
#include <fmt/format.h>

#include "formats/family.h"
#include "formats/hf_config.h"

namespace sx {
namespace {

constexpr TensorName kWhole[] = {{"model.embed_tokens.weight", "token_embd.weight"},
                                 {"model.norm.weight", "output_norm.weight"},
                                 {"model.norm.bias", "output_norm.bias"},
                                 {"lm_head.weight", "output.weight"}};

constexpr TensorName kLayer[] = {
    {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"}, {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
};

// Our name of a layer's part, or the reverse; empty: there is none. What the family says goes before what is usual.
std::string_view translated(std::string_view part, const Family* family, std::string_view TensorName::*from,
                            std::string_view TensorName::*to) {
  const std::span<const TensorName> own = family ? family->names : std::span<const TensorName>();
  for (const std::span<const TensorName> names : {own, std::span<const TensorName>(kLayer)})
    for (const TensorName& name : names)
      if (part == name.*from) return name.*to;
  return {};
}

// Names of one of many: "mlp.experts.#.gate_proj" and "ffn_gate.#", # being a number. Empty: there is none.
std::string numbered(std::string_view part, const Family* family, std::string_view TensorName::*from,
                     std::string_view TensorName::*to) {
  if (!family) return {};
  for (const TensorName& name : family->names) {
    const std::string_view pattern = name.*from, result = name.*to;
    const size_t at = pattern.find('#'), behind = pattern.size() - at - 1;
    if (at == std::string_view::npos || part.size() <= pattern.size() - 1) continue;
    const std::string_view number = part.substr(at, part.size() - behind - at);
    const bool digits = !number.empty() && number.find_first_not_of("0123456789") == std::string_view::npos;
    const bool one_spelling = number.size() == 1 || number[0] != '0';
    if (!digits || !one_spelling || !part.starts_with(pattern.substr(0, at)) || !part.ends_with(pattern.substr(at + 1)))
      continue;
    const size_t place = result.find('#');
    return fmt::format("{}{}{}", result.substr(0, place), number, result.substr(place + 1));
  }
  return {};
}

}  // namespace

std::optional<std::string> canonical_name(std::string_view name, const Family* family) {
  for (const auto& pair : kWhole) {
    if (name == pair.theirs) return std::string(pair.ours);
  }
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos || dot == 0 || dot > 4) return std::nullopt;
  const std::string_view number = name.substr(0, dot);
  if (number.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  if (number.size() > 1 && number[0] == '0') return std::nullopt;  // one spelling per layer
  name.remove_prefix(dot + 1);
  for (const std::string_view suffix : {".weight", ".bias"}) {
    if (!name.ends_with(suffix)) continue;
    const std::string_view part = name.substr(0, name.size() - suffix.size());
    const std::string_view ours = translated(part, family, &TensorName::theirs, &TensorName::ours);
    if (!ours.empty()) return fmt::format("blk.{}.{}{}", number, ours, suffix);
    const std::string one = numbered(part, family, &TensorName::theirs, &TensorName::ours);
    if (!one.empty()) return fmt::format("blk.{}.{}{}", number, one, suffix);
  }
  // Names without ".weight", of which ours say what they are.
  const std::string_view ours = translated(name, family, &TensorName::theirs, &TensorName::ours);
  if (ours.find('.') != std::string_view::npos) return fmt::format("blk.{}.{}", number, ours);
  return std::nullopt;
}

std::optional<std::string> hf_name(std::string_view name, const Family* family) {
  for (const auto& pair : kWhole) {
    if (name == pair.ours) return std::string(pair.theirs);
  }
  constexpr std::string_view kPrefix = "blk.";
  const size_t first = name.find('.'), second = name.find('.', first + 1), last = name.rfind('.');
  if (!name.starts_with(kPrefix) || second == std::string_view::npos || last <= second) return std::nullopt;
  const std::string_view part = name.substr(second + 1, last - second - 1);
  const std::string_view theirs = translated(part, family, &TensorName::ours, &TensorName::theirs);
  if (theirs.empty()) return std::nullopt;
  const std::string_view number = name.substr(first + 1, second - first - 1);
  return fmt::format("model.layers.{}.{}{}", number, theirs, name.substr(last));
}

bool is_ignored_name(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.masked_bias");
}

}  // namespace sx
