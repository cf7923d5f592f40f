// Speculative decoding: what to draft with (SpecOptions), and what it achieved (RoundInfo, SpecStats).
//
// Thread safety: the functions have no state; any thread may call them. Errors throw sx::Error.
#pragma once
#include <specextend/tokenizer.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sx {

// What to speculate with. A preset is a method of the literature; settings change its numbers (spec_settings() lists
// them).
struct SpecOptions {
  std::string preset = "off";
  std::string
      draft_model{};  // GGUF file or Hugging Face folder, for presets that need one; empty: the shipped one that fits
  std::vector<std::pair<std::string, std::string>> settings{};
  std::string json{};  // vLLM's speculative configuration; taken instead of the preset, before the settings
  std::string name{};  // what requests call it (GenerateOptions::preset); empty: the preset's name
};
struct SpecPreset {
  std::string name, what;
  bool needs_draft;
};
std::vector<SpecPreset> spec_presets();
struct SpecSetting {
  std::string name, what;
};
std::vector<SpecSetting> spec_settings();
// What NAME[:key=value,...] asks for, e.g. "sd:nodes=8": a preset by our name or llama.cpp's, its settings, and the key
// draft-model. `more` are further settings by key; one that the text has too is an error. The values are checked when
// an engine is opened.
SpecOptions parse_spec(const std::string& text, const std::map<std::string, std::string>& more = {});
std::string current_spec_setting(std::string_view key);  // its present name, where it had another in earlier versions
std::string spec_describe(const SpecOptions& options);   // a JSON object: setting -> value
// What a way to speculate promises about the text, by its acceptance rule.
enum class SpecPromise {
  kBytes,         // the bytes of plain decoding, whatever else is in the batch
  kDistribution,  // greedy: the same. Sampled: the distribution of plain decoding, but other draws, which depend on the drafts
  kNothing,  // another text (setting allow-lossy)
};
struct SpecRule {
  std::string name;  // setting accept
  SpecPromise promise;
};
SpecRule spec_rule(const SpecOptions& options);

// Milliseconds by phase of the rounds.
struct PhaseTimes {
  double draft = 0;   // forward passes of the drafter
  double verify = 0;  // passes of the target
  double accept = 0;  // choosing tokens, walking the tree
  double commit = 0;  // moving accepted KV cells together
  double score = 0;   // choosing and gathering the KV cells a draft works on
  double host = 0;    // everything else: growing trees, looking up, text
};

// What an answer took.
struct Timings {
  int prompt_tokens = 0;  // processed in this call
  int cached_tokens = 0;  // of the prompt, found in the session's KV cache
  int generated_tokens = 0;
  double prompt_ms = 0;        // until the prompt was in the cache
  double decode_ms = 0;        // since then, without draft_prompt_ms
  double draft_prompt_ms = 0;  // the drafter read the prompt, while the first tokens were decoded plainly
};

// One round: the target verified a tree and accepted a path of it.
struct RoundInfo {
  int drafted = 0;                   // tokens proposed
  int verified = 0;                  // proposed tokens that were rows of the target's pass
  int accepted = 0;                  // verified tokens that were accepted; the round made accepted + 1 tokens
  std::span<const Token> tokens;     // the verified tree; the first is the pending token
  std::span<const int32_t> parents;  // parent of each node; -1 for the first
  std::span<const int32_t> path;     // accepted nodes, beginning with 0
  PhaseTimes times;                  // of this round, for all sequences of its batch together
  // Positions in the text that the draft attends to where these are not all of it, ascending, and how often they have
  // been chosen.
  std::span<const int32_t> cells;
  int refreshes = 0;
  double plain_ms = 0;  // what a round of these sequences without drafts would take; 0: not known
  Timings timings;      // of the answer so far, this round included
};

struct SpecStats {
  int64_t rounds = 0;          // passes of the target after the prompt
  int64_t drafted_rounds = 0;  // rounds with at least one drafted token
  int64_t drafted = 0, verified = 0, accepted = 0;
  std::vector<int64_t> histogram;          // drafted rounds by number of accepted tokens
  std::vector<int64_t> tried_at_depth;     // [d - 1]: drafted rounds whose tree reached depth d
  std::vector<int64_t> accepted_at_depth;  // [d - 1]: of them, those that accepted at least d tokens
  PhaseTimes times;

  // Accepted drafted tokens per drafted round, without the token every round makes anyway ("bonus token").
  double accepted_per_round() const { return drafted_rounds ? double(accepted) / double(drafted_rounds) : 0; }
  // Tokens per drafted round, bonus token included.
  double tokens_per_round() const { return drafted_rounds ? accepted_per_round() + 1 : 1; }
};

}  // namespace sx
