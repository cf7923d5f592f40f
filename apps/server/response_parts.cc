#include "server/response_parts.h"

#include <fmt/format.h>
#include <specextend/inspect.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

namespace sx::server {

namespace {

Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

double per_token(double ms, int count) { return count > 0 ? ms / count : 0; }
double per_second(int count, double ms) { return ms > 0 ? 1000 * count / ms : 0; }

Json bytes_json(const std::string& bytes) {
  Json list = Json::array();
  for (const char c : bytes) list.push_back(uint8_t(c));
  return list;
}

// Whether a text is UTF-8: shortest forms, no surrogates, nothing beyond the last character.
bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const uint8_t c = uint8_t(text[i]);
    const size_t more = c < 0x80                 ? 0
                        : c >= 0xC2 && c <= 0xDF ? 1
                        : (c & 0xF0) == 0xE0     ? 2
                        : c >= 0xF0 && c <= 0xF4 ? 3
                                                 : 4;
    if (more == 4 || i + more >= text.size()) return false;
    for (size_t k = 1; k <= more; ++k)
      if ((uint8_t(text[i + k]) & 0xC0) != 0x80) return false;
    const uint8_t next = more ? uint8_t(text[i + 1]) : 0;
    if ((c == 0xE0 && next < 0xA0) || (c == 0xED && next > 0x9F) || (c == 0xF0 && next < 0x90) ||
        (c == 0xF4 && next > 0x8F))
      return false;
    i += more + 1;
  }
  return true;
}

void add_each(std::vector<int64_t>& sum, const std::vector<int64_t>& more) {
  if (sum.size() < more.size()) sum.resize(more.size());
  for (size_t i = 0; i < more.size(); ++i) sum[i] += more[i];
}

std::string label_of(Token token, const std::string& bytes, LogprobForm form) {
  return form.ids ? fmt::format("token_id:{}", token) : token_label(bytes);
}

Json one_logprob(Token token, const std::string& bytes, double logprob, LogprobForm form) {
  return {{"token", label_of(token, bytes, form)}, {"logprob", logprob}, {"bytes", bytes_json(bytes)}};
}

// More may have been reckoned for another list.
std::span<const TopToken> tops(const AnswerToken& token, int most) {
  return std::span(token.logprob.top).first(std::min(token.logprob.top.size(), size_t(most)));
}

const char* stop_type(FinishReason reason) {
  if (reason == FinishReason::kEnd) return "eos";
  if (reason == FinishReason::kStop) return "word";
  return reason == FinishReason::kCancelled ? "none" : "limit";
}

Json bias_json(const CompletionRequest& request) {
  Json list = Json::array();
  for (const auto& [token, bias] : request.options.sampling.logit_bias)
    list.push_back({{"token", token}, {"bias", bias}});
  for (const Token end : request.ends) list.push_back({{"token", end}, {"bias", nullptr}});  // minus infinity
  return list;
}

Json settings_json(const CompletionRequest& request) {
  const SamplingOptions& s = request.options.sampling;
  return {{"n_predict", request.options.max_tokens},
          {"seed", s.seed},
          {"temperature", s.temperature},
          {"top_k", s.top_k},
          {"top_p", s.top_p},
          {"min_p", s.min_p},
          {"repeat_last_n", s.repeat_last_n},
          {"repeat_penalty", s.repeat_penalty},
          {"presence_penalty", s.presence_penalty},
          {"frequency_penalty", s.frequency_penalty},
          {"adaptive_target", -1.0},  // llama.cpp's adaptive sampling is off
          {"adaptive_decay", 0.0},
          {"stop", request.options.stop},
          {"ignore_eos", request.options.ignore_end},
          {"logit_bias", bias_json(request)},
          {"stream", request.stream},
          {"n_probs", std::max(0, request.logprobs)},
          {"grammar", request.options.grammar},
          {"speculate", request.options.speculate}};
}

}  // namespace

std::string random_id() {
  thread_local std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}", device(), device(), device());
}

int64_t seconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }
std::string event(const Json& json) { return "data: " + text_of(json) + "\n\n"; }

Json error_json(const ApiError& e, const std::string& request_id) {
  Json error{{"message", e.what()}, {"type", e.type}, {"param", or_null(e.param)}, {"code", or_null(e.code)}};
  if (e.prompt_tokens > 0) error["n_prompt_tokens"] = e.prompt_tokens;
  if (e.context > 0) error["n_ctx"] = e.context;
  if (!request_id.empty()) error["request_id"] = request_id;
  return {{"error", std::move(error)}};
}

const char* finish_reason(FinishReason reason, bool called) {
  if (reason != FinishReason::kEnd && reason != FinishReason::kStop) return "length";
  return called ? "tool_calls" : "stop";
}

size_t characters(std::string_view text) {
  return size_t(std::count_if(text.begin(), text.end(), [](char c) { return (uint8_t(c) & 0xC0) != 0x80; }));
}

void drop_thoughts(std::vector<AnswerToken>& tokens, const Places& thoughts) {
  std::erase_if(tokens, [&](const AnswerToken& token) { return is_in(thoughts, token.end); });
}

void drop_thoughts(std::vector<TextShare>& shares, size_t begin, const Places& thoughts) {
  for (TextShare& share : shares) {
    const size_t end = begin + share.text.size();
    for (auto t = thoughts.rbegin(); t != thoughts.rend(); ++t) {  // from behind: what is before stays where it is
      const size_t from = std::max(t->first, begin), to = std::min(t->second, end);
      if (from < to) share.text.erase(from - begin, to - from);
    }
    begin = end;
  }
  std::erase_if(shares, [](const TextShare& share) { return share.text.empty(); });
}

std::string token_label(const std::string& bytes) {
  if (is_utf8(bytes)) return bytes;
  std::string label = "bytes:";
  for (const char c : bytes) label += fmt::format("\\x{:02x}", uint8_t(c));
  return label;
}

Json piece_json(const std::string& bytes) { return is_utf8(bytes) ? Json(bytes) : bytes_json(bytes); }

Json chat_logprobs(std::span<const AnswerToken> tokens, LogprobForm form) {
  Json content = Json::array();
  for (const AnswerToken& token : tokens) {
    Json one = one_logprob(token.token, token.bytes, token.logprob.logprob, form), top = Json::array();
    for (const TopToken& other : tops(token, form.top))
      top.push_back(one_logprob(other.token, other.bytes, other.logprob, form));
    one["top_logprobs"] = std::move(top);
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}};
}

std::vector<size_t> prompt_offsets(std::span<const AnswerToken> tokens, std::string_view text) {
  std::vector<size_t> offsets;
  size_t at = 0;  // characters before `text`
  for (const AnswerToken& token : tokens) {
    offsets.push_back(at);
    std::string_view bytes = token.bytes;
    if (!text.starts_with(bytes) && bytes.starts_with(' ')) bytes.remove_prefix(1);
    if (!text.starts_with(bytes)) continue;
    at += characters(bytes);
    text.remove_prefix(bytes.size());
  }
  return offsets;
}

Json text_logprobs(std::span<const AnswerToken> tokens, LogprobForm form, const std::vector<size_t>& offsets) {
  Json labels = Json::array(), values = Json::array(), likely = Json::array();
  for (const AnswerToken& token : tokens) {
    labels.push_back(label_of(token.token, token.bytes, form));
    if (!token.logprob.known) {
      values.push_back(nullptr);
      likely.push_back(nullptr);
      continue;
    }
    values.push_back(token.logprob.logprob);
    Json best{{labels.back().get<std::string>(), token.logprob.logprob}};  // the chosen one is always there
    for (const TopToken& other : tops(token, form.top))
      best.emplace(label_of(other.token, other.bytes, form), other.logprob);
    likely.push_back(std::move(best));
  }
  return {{"tokens", labels}, {"token_logprobs", values}, {"top_logprobs", likely}, {"text_offset", offsets}};
}

Json prompt_logprobs(std::span<const AnswerToken> tokens, int top) {
  Json list = Json::array();
  for (const AnswerToken& token : tokens) {
    const Logprob& logprob = token.logprob;
    list.push_back(nullptr);
    if (!logprob.known) continue;
    Json all = Json::object();
    const auto add = [&](Token id, const std::string& bytes, double value, int rank) {
      all.emplace(std::to_string(id), Json{{"logprob", value}, {"rank", rank}, {"decoded_token", token_label(bytes)}});
    };
    add(token.token, token.bytes, logprob.logprob, logprob.rank);
    int rank = 0;
    for (const TopToken& other : tops(token, top)) add(other.token, other.bytes, other.logprob, ++rank);
    list.back() = std::move(all);
  }
  return list;
}

Json token_ids(std::span<const AnswerToken> tokens) {
  Json list = Json::array();
  for (const AnswerToken& token : tokens) list.push_back(token.token);
  return list;
}

Json native_logprobs(std::span<const AnswerToken> tokens) {
  Json list = Json::array();
  const auto entry = [](Token id, const std::string& bytes, double logprob) {
    Json one{{"id", id}};
    one.update(one_logprob(id, bytes, logprob, {}));
    return one;
  };
  for (const AnswerToken& token : tokens) {
    Json one = entry(token.token, token.bytes, token.logprob.logprob), top = Json::array();
    for (const TopToken& other : token.logprob.top) top.push_back(entry(other.token, other.bytes, other.logprob));
    one["top_logprobs"] = std::move(top);
    list.push_back(std::move(one));
  }
  return list;
}

Json progress_json(const PromptProgress& p) {
  return {{"total", p.total}, {"cache", p.cached}, {"processed", p.processed}, {"time_ms", p.ms}};
}

Json details_json(std::span<const TextShare> shares, const RoundNotes& notes) {
  Json tokens = Json::array(), rounds = Json::array();
  for (const TextShare& share : shares) tokens.push_back({{"text", share.text}, {"depth", share.depth}});
  for (const RoundNote& r : notes.rounds) {
    rounds.push_back({{"drafted", r.drafted}, {"verified", r.verified}, {"accepted", r.accepted}, {"ms", r.ms}});
    if (r.plain_ms > 0) rounds.back()["plain_ms"] = r.plain_ms;
    if (r.decision.empty()) continue;
    rounds.back()["decision"] = r.decision;
    rounds.back()["why"] = r.why;
    rounds.back()["levels"] = r.levels;
    rounds.back()["expected_tokens"] = std::round(1000 * r.expected_tokens) / 1000;
    rounds.back()["expected_steps"] = std::round(1000 * r.expected_steps) / 1000;
  }
  Json details{{"tokens", tokens}, {"rounds", rounds}, {"history", notes.history}, {"refreshes", notes.refreshes}};
  if (notes.cells_changed) {
    Json cells = Json::array();
    for (const auto& [first, end] : notes.cells) cells.push_back(Json::array({first, end}));
    details["cells"] = std::move(cells);
  }
  return details;
}

Json calls_json(std::span<const ToolCall> calls, size_t first, bool indexed) {
  Json list = Json::array();
  for (const ToolCall& call : calls) {
    Json one = indexed ? Json{{"index", first++}} : Json::object();
    one["id"] = call.id;
    one["type"] = "function";
    one["function"] = {{"name", call.name}, {"arguments", call.arguments}};
    list.push_back(std::move(one));
  }
  return list;
}

void Totals::add(const AnswerTimes& times) {
  const Timings& t = times.timings;
  timings.prompt_tokens += t.prompt_tokens;
  timings.cached_tokens += t.cached_tokens;
  timings.generated_tokens += t.generated_tokens;
  timings.prompt_ms += t.prompt_ms;
  timings.decode_ms += t.decode_ms;
  timings.draft_prompt_ms += t.draft_prompt_ms;
  spec.drafted += times.drafted;
  spec.accepted += times.accepted;
  plain_known = plain_known && times.plain_per_second > 0;
  if (plain_known) plain_seconds += t.generated_tokens / times.plain_per_second;
}

void Totals::add(const ChoiceEnd& end) {
  const SpecStats& s = end.result.spec;
  add(AnswerTimes{end.result.timings, s.drafted, s.accepted, end.plain_per_second});
  spec.rounds += s.rounds;
  spec.drafted_rounds += s.drafted_rounds;
  spec.verified += s.verified;
  add_each(spec.histogram, s.histogram);
  add_each(spec.tried_at_depth, s.tried_at_depth);
  add_each(spec.accepted_at_depth, s.accepted_at_depth);
}

void ThoughtTokens::add(std::span<const AnswerToken> tokens) {
  for (const AnswerToken& token : tokens) ends_.push_back(token.end);
}

int ThoughtTokens::count(size_t taken, const Places& thoughts) {
  int found = 0;
  for (; !ends_.empty() && ends_.front() <= taken; ends_.pop_front()) found += is_in(thoughts, ends_.front());
  return found;
}

Json usage_json(const Totals& totals) {
  const int generated = totals.timings.generated_tokens;
  Json json{{"prompt_tokens", totals.prompt_tokens},
            {"completion_tokens", generated},
            {"total_tokens", totals.prompt_tokens + generated},
            {"prompt_tokens_details", {{"cached_tokens", totals.cached_tokens}}}};
  if (totals.reasoning_tokens) json["completion_tokens_details"] = {{"reasoning_tokens", *totals.reasoning_tokens}};
  return json;
}

Json timings_json(const Totals& totals) {
  const Timings& t = totals.timings;
  Json json{{"cache_n", t.cached_tokens},
            {"prompt_n", t.prompt_tokens},
            {"prompt_ms", t.prompt_ms},
            {"prompt_per_token_ms", per_token(t.prompt_ms, t.prompt_tokens)},
            {"prompt_per_second", per_second(t.prompt_tokens, t.prompt_ms)},
            {"predicted_n", t.generated_tokens},
            {"predicted_ms", t.decode_ms},
            {"predicted_per_token_ms", per_token(t.decode_ms, t.generated_tokens)},
            {"predicted_per_second", per_second(t.generated_tokens, t.decode_ms)},
            {"draft_n", totals.spec.drafted},
            {"draft_n_accepted", totals.spec.accepted}};
  if (t.draft_prompt_ms > 0) json["draft_prompt_ms"] = t.draft_prompt_ms;
  if (totals.plain_known && totals.plain_seconds > 0)
    json["plain_per_second"] = t.generated_tokens / totals.plain_seconds;
  return json;
}

Json native_json(const CompletionRequest& request, const NativeFacts& facts, const ChoiceEnd& end,
                 const std::string& content) {
  const auto& [model, index, prompt_tokens] = facts;
  const GenerateResult& result = end.result;
  Totals totals;
  totals.add(end);
  Json tokens = Json::array();
  if (request.return_tokens && !request.stream) tokens = result.tokens;
  return {{"index", index},
          {"content", content},
          {"tokens", tokens},
          {"id_slot", end.slot},
          {"stop", true},
          {"model", model},
          {"tokens_predicted", result.timings.generated_tokens},
          {"tokens_evaluated", prompt_tokens},
          {"tokens_cached", prompt_tokens + result.timings.generated_tokens},
          {"has_new_line", result.text.find('\n') != std::string::npos},
          {"truncated", result.reason == FinishReason::kContext},
          {"stop_type", stop_type(result.reason)},
          {"stopping_word", result.reason == FinishReason::kStop ? end.stopping_word : ""},
          {"generation_settings", settings_json(request)},
          {"timings", timings_json(totals)},
          {"metrics", Json::parse(spec_metrics_json(result.spec))}};
}

Json chosen_fields(Json answer, const std::vector<std::string>& fields) {
  if (fields.empty()) return answer;
  Json chosen = Json::object();
  for (const std::string& path : fields) {
    const Json* at = &answer;
    for (size_t begin = 0; at && begin <= path.size();) {
      const size_t end = std::min(path.find('/', begin), path.size());
      const auto found = at->is_object() ? at->find(path.substr(begin, end - begin)) : at->end();
      at = found == at->end() ? nullptr : &*found;
      begin = end + 1;
    }
    if (at) chosen[path] = *at;
  }
  return chosen;
}

}  // namespace sx::server
