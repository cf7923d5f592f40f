// The configuration of speculation. A preset fills in all values, a setting changes one of them by name, and
// check_config rejects combinations that do not work together.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "speculative/accept/accept.h"
#include "speculative/cache/config.h"
#include "speculative/tree/policy.h"

namespace sx {

enum class DrafterKind {
  kNone,
  kModel,
  kMtp,  // MTP blocks inside the target's file
  kSelf,
  kNgram,
  kSuffix,
  kFuse,
  kNamed
};  // kNamed: registered by a program (draft/registry.h)

// Drafting by looking the text up in itself.
struct IndexConfig {
  int ngram_min = 1, ngram_max = 3;  // n-gram: lengths that are looked for, longest first
  int match_max = 64;                // suffix: longest match that is looked for
  float factor = 1, offset = 0;      // suffix: draft at most factor * match + offset tokens
  float min_prob = 0.1f;             // suffix: paths below this probability are not followed
  int store = 0;                     // suffix: tokens of earlier answers that are looked up, too
  std::string store_file;            // suffix: a text that is
};

// The weights with which the target drafts for itself.
enum class SelfWeights {
  kOwn,   // the target's
  kQ4_0,  // a copy of them in 4 bits, made when the engine opens
  kAuto,  // the copy where the target's matrices have 8 bits and more
};

// Drafting with the target itself: layers left out, weights in fewer bits.
struct SelfConfig {
  SelfWeights weights = SelfWeights::kOwn;
  float skip = 0.45f;       // share of the layers' halves (attention, feed-forward) left out, spread evenly
  std::vector<int> layers;  // instead: these layers are left out
  int exit = 0;             // instead: all layers from this one on are left out
};

struct SpecConfig {
  std::string preset = "off";
  DrafterKind drafter = DrafterKind::kNone;
  std::string drafter_name;                       // of kNamed
  DrafterKind fuse_model = DrafterKind::kModel;   // of kFuse: kModel, kMtp or kSelf
  DrafterKind fuse_index = DrafterKind::kSuffix;  // of kFuse: kSuffix or kNgram
  DrafterKind inner = DrafterKind::
      kNone;  // the inner drafter of a drafter that runs a model (staged drafting): kNgram, kSuffix, or kModel before kSelf
  int inner_nodes = 6;     // most tokens that the inner drafter proposes
  int inner_budget = 256;  // cells a model that does so works on: the first and the most recent
  TreeConfig tree;         // index drafters read nodes and depth only
  AcceptConfig accept;
  IndexConfig index;
  SelfConfig self;
  bool cost_model = true;   // cut trees to what pays by measured times (rule match only); false: sizes as given
  bool controller = false;  // for a request alone a controller decides before each draft (preset auto)
  bool lazy = true;         // the first tokens do not wait for the draft to read a long prompt
  bool couple = true;       // when the target samples, rank guesses with the target's own noise
  bool allow_lossy = false;
  std::string draft_model;    // of kModel: GGUF file or folder, of a model or of a draft head
  std::string draft_kv_type;  // "": the fastest
  CacheConfig cache;          // of a draft model or head

  bool on() const { return drafter != DrafterKind::kNone; }
  // Whoever drafts has a cache that can be chosen: a draft model, a head, or the target itself.
  bool has_cache() const { return drafts_with_model() || drafts_with_mtp() || drafts_with(DrafterKind::kSelf); }
  bool needs_model() const { return drafts_with_model() || inner == DrafterKind::kModel; }
  bool drafts_with_model() const { return drafts_with(DrafterKind::kModel); }
  bool drafts_with_mtp() const { return drafts_with(DrafterKind::kMtp); }
  bool drafts_with(DrafterKind kind) const {
    return drafter == kind || (drafter == DrafterKind::kFuse && fuse_model == kind);
  }
};

struct PresetInfo {
  const char* name;
  const char* what;  // one line
  bool needs_draft;  // a draft model must be given
};
std::span<const PresetInfo> preset_infos();

struct SettingInfo {
  const char* name;  // "nodes": --spec NAME:nodes=8 on the command line
  const char* what;  // one line with the values it takes
};
std::span<const SettingInfo> setting_infos();

// All throw sx::Error naming the preset, setting or combination that is wrong, and what would be right.
SpecConfig preset_config(std::string_view name);
void apply_setting(SpecConfig& config, std::string_view name, std::string_view value);
std::string setting_value(const SpecConfig& config, std::string_view name);  // as apply_setting takes it
void check_config(const SpecConfig& config);

// vLLM's --speculative-config: {"method": "ngram", "num_speculative_tokens": 5, ...}. Unknown keys are refused by name.
SpecConfig config_from_json(std::string_view json);

}  // namespace sx
