// What a draft head is: EAGLE-1 (HASS), EAGLE-3 with its variants, Medusa, LongSpec's drafter, DFlash (DSpark), a Gemma
// 4 assistant, or the MTP blocks of a model's own file. Filled from the head's own config.json and the names of its
// tensors, and checked against the target it is meant for.
#pragma once
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "formats/model_config.h"

namespace sx {

struct HeadConfig {
  enum class Kind { kEagle1, kEagle3, kMedusa, kLongSpec, kMtp, kDFlash, kAssistant };

  Kind kind = Kind::kEagle1;
  // The head's own decoder: layers, width, heads, RoPE, norm epsilon and trained length (`context`), read literally
  // from its config and never inherited from the target. `vocab` is the target's. Medusa: width and vocab matter.
  // LongSpec: RoPE and trained length are the target's, whose keys it meets.
  ModelConfig cell;
  int target_width = 0;
  int draft_vocab = 0;  // columns of the logits
  // EAGLE-3: the states it reads are the inputs of these target layers, low to high; `layers` of the target means after
  // its last layer. EAGLE-1, MTP, Medusa and assistants read the state after the last layer and the target's final
  // norm: one entry. LongSpec reads cells, no states; an assistant both.
  std::vector<int> features;
  bool bias = false;           // of fc (EAGLE) or of the residual blocks (Medusa)
  bool own_embedding = false;  // else the target's
  bool own_head = false;       // else the target's
  // EAGLE-3 only, and norm_output of MTP blocks.
  bool norm_before_residual = false;  // the residual is the normed state
  bool norm_before_fc = false;        // one norm over all features before fc
  bool fc_norm = false;               // one norm for each feature before fc
  bool norm_output = false;           // the next level is fed the state after `norm`
  int mask_token = -1;                // parallel drafting: stands for tokens not yet known; -1: none
  // Medusa only.
  int medusa_heads = 0, medusa_layers = 0;
  bool shared_head = false;  // all heads use lm_heads.0
  // The static tree it was trained for: every node by the ranks that lead to it, in the file's order; empty: not given.
  std::vector<std::vector<int>> medusa_choices;

  // LongSpec only.
  int window = 0;  // how far it looks back among its own cells
  bool cross_bias = false, cross_out_bias = false;

  // MTP only: each layer is a block of its own (`cell.layers` of them), with an input that joins embedding and state.
  bool state_first = false;     // the state comes before the embedding
  bool own_final_norm = false;  // else the target's

  // DFlash only; its masks are `mask_token`. Features as EAGLE-3's.
  int block = 0;             // rows of a block, the pending token included
  bool from_anchor = false;  // rows predict the token behind them; else the one in their place, the first row none
  int markov_rank = 0;       // DSpark: of the bias by the token before; 0: none
  std::vector<int> block_windows;     // [layers], 0: none
  std::vector<uint8_t> block_causal;  // [layers]: rows of a block see only those before them

  // Gemma 4 assistants only: the layer of the target whose cells each layer attends to. `own_embedding`: embed_tokens,
  // which is the output matrix where there is no lm_head; what goes in is embedded by the target.
  std::vector<int> target_layers;

  int trained_length() const { return cell.context; }
};

const char* head_kind_name(HeadConfig::Kind kind);  // "EAGLE-1", ...

// "midlayer.hidden_norm.weight" -> "layers.0.hidden_norm.weight", "2.0.linear.bias" -> "blocks.2.layers.0.bias", ...:
// one name for each tensor, whoever wrote the file. Unknown names come back as they are.
std::string canonical_head_name(std::string_view name);

// `names`: canonical names of the tensors there are; they settle what config.json leaves open. `file`: for messages.
// Throws sx::Error where the config is wrong or does not fit the target.
HeadConfig head_config_from_json(std::string_view text, const std::string& file,
                                 const std::unordered_set<std::string>& names, const ModelConfig& target);

}  // namespace sx
