// What speculation did, for programs: our own JSON and the block that vLLM's responses carry; and the lists of presets
// and settings.
#include <nlohmann/json.hpp>

#include "engine/speculation.h"
#include "specextend/inspect.h"

namespace sx {

using OrderedJson = nlohmann::ordered_json;

namespace {
std::string text_of(const OrderedJson& j) { return j.dump(-1, ' ', false, OrderedJson::error_handler_t::replace); }
}  // namespace

std::string spec_stats_json(const SpecStats& s) {
  OrderedJson j;
  j["rounds"] = s.rounds;
  j["drafted_rounds"] = s.drafted_rounds;
  j["drafted_tokens"] = s.drafted;
  j["verified_tokens"] = s.verified;
  j["accepted_tokens"] = s.accepted;
  j["accepted_per_round"] = s.accepted_per_round();
  j["tokens_per_round_with_bonus"] = s.tokens_per_round();
  j["acceptance_histogram"] = s.histogram;
  j["tried_at_depth"] = s.tried_at_depth;
  j["accepted_at_depth"] = s.accepted_at_depth;
  const PhaseTimes& t = s.times;
  j["ms"] = {{"draft", t.draft},   {"verify", t.verify}, {"accept", t.accept},
             {"commit", t.commit}, {"score", t.score},   {"host", t.host}};
  return text_of(j);
}

std::string spec_metrics_json(const SpecStats& s) {
  int64_t tried = 0;
  for (int64_t n : s.tried_at_depth) tried += n;
  OrderedJson j;
  j["mean_acceptance_length"] = s.tokens_per_round();
  j["draft_acceptance_rate"] = tried ? double(s.accepted) / double(tried) : 0.0;
  j["acceptance_histogram"] = s.histogram;
  j["num_spec_steps"] = s.drafted_rounds;
  j["num_accepted_draft_tokens"] = s.accepted;
  j["num_draft_tokens"] = tried;  // a tree counts by its depth, as the chain of tokens it can yield
  j["num_spec_tokens"] = s.histogram.empty() ? 0 : s.histogram.size() - 1;
  j["num_tree_nodes"] = s.verified;
  return text_of({{"speculative_decoding", j}});
}

std::vector<SpecPreset> spec_presets() {
  std::vector<SpecPreset> all;
  for (const PresetInfo& p : preset_infos()) all.push_back({p.name, p.what, p.needs_draft});
  return all;
}

std::vector<SpecSetting> spec_settings() {
  std::vector<SpecSetting> all;
  for (const SettingInfo& s : setting_infos()) all.push_back({s.name, s.what});
  return all;
}

std::string spec_describe(const SpecOptions& options) {
  const SpecConfig config = configured(options);
  OrderedJson j{{"preset", config.preset}};
  for (const SettingInfo& s : setting_infos()) j[s.name] = setting_value(config, s.name);
  return text_of(j);
}

}  // namespace sx
