#include "cli/explain_data.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sx::cli {
namespace {

using Json = nlohmann::ordered_json;

Json times_json(const PhaseTimes& t) {
  Json j;
  for (const ExplainPhase& p : phases_of(t)) j[p.name] = p.ms;
  return j;
}

Json summary_json(const Explanation& e, const ExplainSums& s) {
  Json j{{"prompt_tokens", e.prompt_tokens},
         {"tokens", e.tokens.size()},
         {"rounds", e.rounds.size()},
         {"drafted_rounds", s.drafted_rounds},
         {"drafted", s.drafted},
         {"verified", s.verified},
         {"accepted", s.accepted},
         {"accepted_per_round", s.accepted_per_round()},
         {"tokens_per_round", s.tokens_per_round()},
         {"prompt_ms", e.timings.prompt_ms},
         {"decode_ms", e.timings.decode_ms},
         {"ms", times_json(s.times)},
         {"refreshes", s.refreshes}};
  if (e.plain_ms > 0) j["plain_ms_per_token"] = e.plain_ms;
  if (e.compared) j["equal_to_plain"] = e.equal;
  if (e.compared && !e.equal) j["difference"] = e.difference;
  return j;
}

}  // namespace

std::vector<std::pair<int, int>> ranges_of(std::span<const int32_t> cells) {
  std::vector<std::pair<int, int>> ranges;
  for (const int32_t cell : cells)
    if (!ranges.empty() && ranges.back().second == cell) ++ranges.back().second;
    else ranges.emplace_back(cell, cell + 1);
  return ranges;
}

void drop_whole_refreshes(Explanation& e) {
  const auto whole = [](const ExplainRefresh& r) {
    return r.ranges.size() == 1 && r.ranges[0] == std::pair(0, r.length);
  };
  if (std::all_of(e.refreshes.begin(), e.refreshes.end(), whole)) e.refreshes.clear();
}

void place_rounds(Explanation& e) {
  int first = 0, sum = 0;
  const int tokens = int(e.tokens.size());
  for (size_t i = 0; i < e.rounds.size(); ++i) {
    ExplainRound& r = e.rounds[i];
    r.first = first;
    r.made = std::min(r.accepted + 1, tokens - first);  // the last round may be cut short
    first += r.made;
    sum += r.accepted;
    if (i >= size_t(kMeanRounds)) sum -= e.rounds[i - size_t(kMeanRounds)].accepted;
    r.mean = double(sum) / double(std::min(i + 1, size_t(kMeanRounds)));
  }
}

double total_ms(const PhaseTimes& t) { return t.draft + t.verify + t.accept + t.commit + t.score + t.host; }

std::array<ExplainPhase, 6> phases_of(const PhaseTimes& t) {
  return {{{"draft", "passes of the drafter", t.draft},
           {"verify", "passes of the target", t.verify},
           {"accept", "choosing tokens, walking the tree", t.accept},
           {"commit", "moving accepted cells together", t.commit},
           {"score", "choosing and gathering the draft's cells", t.score},
           {"host", "everything else", t.host}}};
}

ExplainSums sums_of(const Explanation& e) {
  ExplainSums s;
  for (const ExplainRound& r : e.rounds) {
    s.drafted += r.drafted, s.verified += r.verified, s.accepted += r.accepted, s.drafted_rounds += r.verified > 0;
    s.refreshes = r.refreshes;
    PhaseTimes& t = s.times;
    t.draft += r.times.draft, t.verify += r.times.verify, t.accept += r.times.accept;
    t.commit += r.times.commit, t.score += r.times.score, t.host += r.times.host;
  }
  return s;
}

std::string explain_json(const Explanation& e) {
  Json j{{"version", e.version},
         {"model", e.model},
         {"draft_model", e.draft_model},
         {"method", e.method},
         {"backend", e.backend},
         {"settings", Json::parse(e.settings_json, nullptr, false)},
         {"finish_reason", finish_reason_name(e.reason)},
         {"summary", summary_json(e, sums_of(e))},
         {"text", e.text},
         {"tokens", e.tokens},
         {"pieces", e.pieces}};
  if (j["settings"].is_discarded()) j["settings"] = nullptr;
  j["rounds"] = Json::array();
  for (const ExplainRound& r : e.rounds)
    j["rounds"].push_back({{"first", r.first},
                           {"made", r.made},
                           {"drafted", r.drafted},
                           {"verified", r.verified},
                           {"accepted", r.accepted},
                           {"running_mean", r.mean},
                           {"refreshes", r.refreshes},
                           {"tokens", r.tokens},
                           {"texts", r.texts},
                           {"parents", r.parents},
                           {"path", r.path},
                           {"ms", times_json(r.times)}});
  j["refreshes"] = Json::array();
  for (const ExplainRefresh& r : e.refreshes)
    j["refreshes"].push_back({{"number", r.number}, {"round", r.round}, {"length", r.length}, {"ranges", r.ranges}});
  j["chunks"] = {{"tokens", e.chunk}, {"sink", e.sink}, {"recent", e.recent}, {"texts", e.chunks}};
  const std::string plain = j.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out;  // these appear inside strings only
  for (size_t at = 0; at < plain.size(); ++at) {
    if (plain[at] == '<') out += "\\u003c";
    else if (plain.compare(at, 3, "\xE2\x80\xA8") == 0) out += "\\u2028", at += 2;
    else if (plain.compare(at, 3, "\xE2\x80\xA9") == 0) out += "\\u2029", at += 2;
    else out += plain[at];
  }
  return out + "\n";
}

}  // namespace sx::cli
