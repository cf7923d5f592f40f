#include "cli/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace sx::cli {

bool promises_bytes(const SpecRule& rule, const SamplingOptions& sampling) {
  return rule.promise == SpecPromise::kBytes ||
         (rule.promise == SpecPromise::kDistribution && sampling.temperature == 0);
}

std::string allowed_difference(const SpecRule& rule) {
  if (rule.promise == SpecPromise::kNothing) return fmt::format("rule {} changes the text", rule.name);
  return fmt::format("rule {} keeps the distribution, not the bytes: texts may differ", rule.name);
}

GenerateResult decode_plainly(Session& session, std::span<const Token> prompt, GenerateOptions options) {
  options.speculate = false;
  options.on_round = {};
  options.on_prefill = {};
  options.on_text = {};
  return session.generate(prompt, options);
}

AnswerTime PromptTimes::of(const GenerateResult& result, bool speculated) {
  const Timings& t = result.timings;
  double& own = prompt_[speculated];
  if (t.prompt_tokens >= t.cached_tokens) own = t.prompt_ms;  // it was read, not found
  if (speculated) draft_prompt_ = std::max(draft_prompt_, t.draft_prompt_ms);
  const double prompt = own > 0 ? own : prompt_[!speculated];
  return {prompt > 0 ? prompt : t.prompt_ms, speculated ? draft_prompt_ : 0, t.decode_ms};
}

Speedup speedup(const AnswerTime& plain, const AnswerTime& drafted) {
  const auto ratio = [](double before, double after) { return before / std::max(1e-6, after); };
  return {ratio(plain.whole(), drafted.whole()), ratio(plain.after_prompt(), drafted.after_prompt()),
          ratio(plain.decode, drafted.decode)};
}

nlohmann::ordered_json to_object(const Speedup& s) {
  return {{"whole_answer", s.whole}, {"after_prompt", s.after_prompt}, {"decode_only", s.decode}};
}

nlohmann::ordered_json to_object(const AnswerTime& t) {
  return {
      {"whole_ms", t.whole()}, {"prompt_ms", t.prompt}, {"draft_prompt_ms", t.draft_prompt}, {"decode_ms", t.decode}};
}

double distinct_ngrams(std::span<const Token> tokens, size_t n) {
  if (n == 0 || tokens.size() < n) return 1;
  std::vector<std::span<const Token>> runs;
  for (size_t i = 0; i + n <= tokens.size(); ++i) runs.push_back(tokens.subspan(i, n));
  const auto less = [](const auto& a, const auto& b) {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  };
  std::sort(runs.begin(), runs.end(), less);
  size_t distinct = 1;
  for (size_t i = 1; i < runs.size(); ++i) distinct += less(runs[i - 1], runs[i]);
  return double(distinct) / double(runs.size());
}

}  // namespace sx::cli
