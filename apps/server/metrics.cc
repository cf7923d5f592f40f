#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sx::server {
namespace {

std::string escaped(const std::string& label) {
  std::string out;
  for (char c : label) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') out += "\\n";
    else out += c;
  }
  return out;
}

void head(std::string& out, const char* name, const char* type, const char* what) {
  out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, what, name, type);
}

size_t bucket_of(int context) {
  size_t bucket = 0;
  for (int bound : {1 << 10, 4 << 10, 16 << 10, 64 << 10}) bucket += context >= bound;
  return bucket;
}

// OpenAI's word, as vLLM labels requests.
const char* reason_name(FinishReason reason) {
  return reason == FinishReason::kEnd || reason == FinishReason::kStop ? "stop" : "length";
}

}  // namespace

void Histogram::observe(double value) {
  ++counts_[size_t(std::ranges::lower_bound(bounds_, value) - bounds_.begin())];
  sum_ += value;
}

void Histogram::write(std::string& out, const char* name, const char* what, const std::string& labels) const {
  head(out, name, "histogram", what);
  int64_t below = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, below);
  }
  out += fmt::format("{}_sum{{{}}} {}\n{}_count{{{}}} {}\n", name, labels, sum_, name, labels, below);
}

void Metrics::count_response(int status) {
  const std::lock_guard lock(mutex_);
  ++responses_[status];
}

void Metrics::count_cancelled() {
  const std::lock_guard lock(mutex_);
  ++cancelled_;
}

void Metrics::count_timeout() {
  const std::lock_guard lock(mutex_);
  ++timeouts_;
}

void Metrics::add_progress(const Timings& before, const Timings& now) {
  const auto more = [&](auto Timings::*field) {
    return std::max(now.*field, before.*field) - before.*field;
  };  // counters never fall
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += more(&Timings::prompt_tokens) + more(&Timings::cached_tokens);
  cached_tokens_ += more(&Timings::cached_tokens);
  generated_tokens_ += more(&Timings::generated_tokens);
  step_tokens_ += more(&Timings::prompt_tokens) + more(&Timings::cached_tokens) + more(&Timings::generated_tokens);
  prompt_seconds_ += more(&Timings::prompt_ms) / 1e3;
  decode_seconds_ += more(&Timings::decode_ms) / 1e3;
}

void Metrics::add_round(const RoundInfo& round, int context, double gap) {
  const PhaseTimes& t = round.times;
  const std::lock_guard lock(mutex_);
  Rounds& r = by_context_[bucket_of(context)];
  ++r.rounds;
  longest_ = std::max(longest_, context + 1);
  r.drafts += round.drafted > 0;
  r.drafted += round.drafted;
  r.accepted += round.accepted;
  r.seconds += (t.draft + t.verify + t.accept + t.commit + t.score + t.host) / 1e3;
  if (gap > 0) between_.observe(gap);
  if (round.verified == 0) return;
  depths_.assign(round.parents.size(), 0);
  for (size_t i = 1; i < depths_.size(); ++i) depths_[i] = depths_[size_t(round.parents[i])] + 1;
  const int depth = *std::ranges::max_element(depths_);
  ++drafts_;
  draft_tokens_ += depth;  // a tree counts by its depth
  accepted_tokens_ += round.accepted;
  accepted_at_.resize(std::max(accepted_at_.size(), size_t(depth)));
  for (size_t d = 0; d < size_t(round.accepted); ++d) ++accepted_at_[d];
}

void Metrics::add(const GenerateResult& r, const RequestTimes& times, RequestSize asked) {
  const std::lock_guard lock(mutex_);
  ++finished_[reason_name(r.reason)];
  queued_.observe(times.queued);
  whole_.observe(times.whole);
  if (r.timings.generated_tokens > 0) first_token_.observe(times.first_token);
  if (r.timings.generated_tokens > 1)
    per_token_.observe((times.whole - times.first_token) / (r.timings.generated_tokens - 1));
  const double told = r.timings.generated_tokens > 0 ? times.first_token : times.whole;
  inference_.observe(times.whole - times.queued);
  prefill_.observe(told - times.queued);
  decode_.observe(times.whole - told);
  prompt_sizes_.observe(r.timings.prompt_tokens + r.timings.cached_tokens);
  answer_sizes_.observe(r.timings.generated_tokens);
  choices_asked_.observe(asked.choices);
  if (asked.max_tokens >= 0) bounds_asked_.observe(asked.max_tokens);
  preemptions_.observe(0);  // who runs is never put back into the queue
}

void Metrics::count_step() {
  const std::lock_guard lock(mutex_);
  ++steps_;
  step_sizes_.observe(double(std::exchange(step_tokens_, 0)));
}

void Metrics::add_refreshes(int count) {
  const std::lock_guard lock(mutex_);
  refreshes_ += count;
}

void Metrics::add_key(const std::string& key, int64_t prompt_tokens, int64_t generated_tokens) {
  if (key.empty()) return;
  const std::lock_guard lock(mutex_);
  KeyCounts& counts = keys_[key];
  ++counts.requests;
  counts.prompt_tokens += prompt_tokens, counts.generated_tokens += generated_tokens;
}

void Metrics::count_rejected(const std::string& key) {
  if (key.empty()) return;
  const std::lock_guard lock(mutex_);
  ++keys_[key].rejected;
}

void Metrics::write_keys(std::string& out, const std::string& label, const std::string* only) const {
  const auto family = [&](const char* name, const char* what, int64_t KeyCounts::*member) {
    head(out, name, "counter", what);
    for (const auto& [key, counts] : keys_)
      if (!only || key == *only)
        out += fmt::format("{}{{{},api_key=\"{}\"}} {}\n", name, label, escaped(key), counts.*member);
  };
  family("specextend_key_requests_total", "Requests by the name of their API key.", &KeyCounts::requests);
  family("specextend_key_prompt_tokens_total", "Their prompt tokens.", &KeyCounts::prompt_tokens);
  family("specextend_key_generation_tokens_total", "Their generated tokens.", &KeyCounts::generated_tokens);
  family("specextend_key_rejected_total", "Requests refused for the limits of their key.", &KeyCounts::rejected);
}

// The same under the names that boards for llama.cpp's server have; without labels, as there.
void Metrics::write_llama(std::string& out, const Gauges& gauges) const {
  const auto one = [&](const char* name, const char* type, const char* what, auto value) {
    head(out, name, type, what);
    out += fmt::format("{} {}\n", name, value);
  };
  const auto rate = [](int64_t count, double seconds) { return seconds > 0 ? double(count) / seconds : 0; };
  int64_t rounds = 0;
  for (const Rounds& r : by_context_) rounds += r.rounds;
  const int64_t read = prompt_tokens_ - cached_tokens_;
  one("llamacpp:prompt_tokens_total", "counter", "Prompt tokens that were processed.", read);
  one("llamacpp:prompt_tokens_cached_total", "counter", "Prompt tokens found in a cache.", cached_tokens_);
  one("llamacpp:prompt_seconds_total", "counter", "Time spent on prompts.", prompt_seconds_);
  one("llamacpp:tokens_predicted_total", "counter", "Generated tokens.", generated_tokens_);
  one("llamacpp:tokens_predicted_seconds_total", "counter", "Time spent on them.", decode_seconds_);
  one("llamacpp:n_decode_total", "counter", "Rounds of all requests.", rounds);
  one("llamacpp:n_tokens_max", "counter", "Tokens of the longest text so far.", longest_);
  one("llamacpp:n_busy_slots_per_decode", "gauge", "Requests in a step.",
      steps_ > 0 ? double(rounds) / double(steps_) : 0);
  one("llamacpp:spec_decode_num_draft_tokens_total", "counter", "Drafted tokens, a tree by its depth.", draft_tokens_);
  one("llamacpp:spec_decode_num_accepted_tokens_total", "counter", "Accepted drafted tokens.", accepted_tokens_);
  one("llamacpp:spec_decode_num_drafts_total", "counter", "Rounds with a draft.", drafts_);
  one("llamacpp:prompt_tokens_seconds", "gauge", "Prompt tokens per second.", rate(read, prompt_seconds_));
  one("llamacpp:predicted_tokens_seconds", "gauge", "Generated tokens per second.",
      rate(generated_tokens_, decode_seconds_));
  one("llamacpp:requests_processing", "gauge", "Requests in the running batch.", gauges.running);
  one("llamacpp:requests_deferred", "gauge", "Requests in the queue.", gauges.waiting);
}

// What vLLM tells of requests that ran to their end, and of steps.
void Metrics::write_requests(std::string& out, const std::string& label) const {
  const auto one = [&](const Histogram& histogram, const char* name, const char* what) {
    histogram.write(out, name, what, label);
  };
  one(first_token_, "vllm:time_to_first_token_seconds", "From the request's arrival to its first token.");
  one(per_token_, "vllm:time_per_output_token_seconds", "Mean time per token after the first, one value per request.");
  one(between_, "vllm:inter_token_latency_seconds", "Between two rounds of a request, whatever their tokens.");
  one(whole_, "vllm:e2e_request_latency_seconds", "From a request's arrival to its end.");
  one(queued_, "vllm:request_queue_time_seconds", "From a request's arrival to its start.");
  one(inference_, "vllm:request_inference_time_seconds", "From a request's start to its end.");
  one(prefill_, "vllm:request_prefill_time_seconds", "From a request's start to its first token.");
  one(decode_, "vllm:request_decode_time_seconds", "From a request's first token to its end.");
  one(prompt_sizes_, "vllm:request_prompt_tokens", "Tokens of a request's prompt.");
  one(answer_sizes_, "vllm:request_generation_tokens", "Tokens of a request's answer.");
  one(choices_asked_, "vllm:request_params_n", "'n' of a request, once for each of its choices.");
  one(bounds_asked_, "vllm:request_params_max_tokens", "'max_tokens' of requests that give it.");
  one(preemptions_, "vllm:request_num_preemptions", "Times a request was put back: none is.");
  one(step_sizes_, "vllm:iteration_tokens_total", "Tokens of prompts, cached ones included, and of answers in a step.");
}

std::string Metrics::text_of_key(const std::string& model, const std::string& key) const {
  const std::lock_guard lock(mutex_);
  std::string out;
  write_keys(out, fmt::format("model_name=\"{}\"", escaped(model)), &key);
  return out;
}

std::string Metrics::text(const std::string& model, const Gauges& gauges) const {
  const std::lock_guard lock(mutex_);
  const std::string label = fmt::format("model_name=\"{}\"", escaped(model));
  std::string out;
  const auto one = [&](const char* name, const char* type, const char* what, auto value) {
    head(out, name, type, what);
    out += fmt::format("{}{{{}}} {}\n", name, label, value);
  };
  one("vllm:num_requests_running", "gauge", "Requests in the running batch.", gauges.running);
  one("vllm:num_requests_waiting", "gauge", "Requests in the queue.", gauges.waiting);
  head(out, "vllm:num_requests_waiting_by_reason", "gauge", "Requests in the queue, by what they wait for.");
  out += fmt::format("vllm:num_requests_waiting_by_reason{{{},reason=\"capacity\"}} {}\n", label, gauges.waiting);
  one("vllm:num_preemptions_total", "counter", "Requests that were put back into the queue: none is.", 0);
  const auto full = responses_.find(429);
  one("vllm:admission_rejections_total", "counter", "Requests refused with status 429.",
      full == responses_.end() ? 0 : full->second);
  one("vllm:kv_cache_usage_perc", "gauge",
      "Share of the sessions' cells that requests work on, 0 to 1; texts at rest give way.", gauges.cache_share);
  head(out, "vllm:cache_config_info", "gauge", "The cells of all sessions; a block is one token's.");
  out += fmt::format(
      "vllm:cache_config_info{{{},block_size=\"1\",num_gpu_blocks=\"{}\",cache_dtype=\"{}\","
      "enable_prefix_caching=\"True\",kv_cache_size_tokens=\"{}\",kv_cache_max_concurrency=\"{}\"}} 1\n",
      label, gauges.cells, escaped(gauges.cell_type), gauges.cells, gauges.sessions);
  one("vllm:prompt_tokens_total", "counter", "Prompt tokens, those found in a cache included.", prompt_tokens_);
  one("vllm:prompt_tokens_cached_total", "counter", "Of them, found in a cache.", cached_tokens_);
  one("vllm:generation_tokens_total", "counter", "Generated tokens.", generated_tokens_);
  one("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the caches.", prompt_tokens_);
  one("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the caches.", cached_tokens_);
  head(out, "vllm:request_success_total", "counter", "Requests that ran to their end, by reason.");
  for (const char* reason : {"stop", "length"}) {
    const auto found = finished_.find(reason);
    out += fmt::format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", label, reason,
                       found == finished_.end() ? 0 : found->second);
  }
  write_requests(out, label);
  one("vllm:spec_decode_num_drafts_total", "counter", "Rounds with a draft.", drafts_);
  one("vllm:spec_decode_num_draft_tokens_total", "counter", "Drafted tokens, a tree by its depth.", draft_tokens_);
  one("vllm:spec_decode_num_accepted_tokens_total", "counter", "Accepted drafted tokens.", accepted_tokens_);
  head(out, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
       "Accepted drafted tokens by place in the draft.");
  for (size_t d = 0; d < accepted_at_.size(); ++d)
    out += fmt::format("vllm:spec_decode_num_accepted_tokens_per_pos_total{{{},position=\"{}\"}} {}\n", label, d,
                       accepted_at_[d]);
  const auto by_context = [&](const char* name, const char* what, auto Rounds::*member) {
    head(out, name, "counter", what);
    for (size_t i = 0; i < kContexts.size(); ++i)
      out += fmt::format("{}{{{},ctx=\"{}\"}} {}\n", name, label, kContexts[i], by_context_[i].*member);
  };
  by_context("specextend_rounds_total", "Passes of the target after prompts, by length of the text, once per request.",
             &Rounds::rounds);
  by_context("specextend_drafts_total", "Of them, with a draft.", &Rounds::drafts);
  by_context("specextend_draft_tokens_total", "Drafted tokens, every node of a tree.", &Rounds::drafted);
  by_context("specextend_accepted_tokens_total", "Accepted drafted tokens; a round makes one token more.",
             &Rounds::accepted);
  by_context("specextend_round_seconds_total", "Time of the rounds, as each of their requests waited for it.",
             &Rounds::seconds);
  one("specextend_draft_refreshes_total", "counter", "Times that the cells a draft works on were chosen anew.",
      refreshes_);
  one("specextend_requests_cancelled_total", "counter", "Requests whose client left.", cancelled_);
  one("specextend_requests_timeout_total", "counter", "Requests that took longer than allowed.", timeouts_);
  one("specextend_prompt_seconds_total", "counter", "Time spent on prompts.", prompt_seconds_);
  one("specextend_decode_seconds_total", "counter", "Time from the end of the prompt to the end of the answer.",
      decode_seconds_);
  one("specextend_saved_states", "gauge", "States of sessions kept in memory and on disk.", gauges.saved_states);
  one("specextend_saved_state_bytes", "gauge", "Size of those in memory.", gauges.saved_bytes);
  one("specextend_saved_state_disk_bytes", "gauge", "Size of those on disk.", gauges.disk_bytes);
  one("specextend_kv_shared_bytes", "gauge", "K/V cells that sessions with a common beginning share, counted once.",
      gauges.kv.shared);
  one("specextend_kv_private_bytes", "gauge", "K/V cells of one session each.", gauges.kv.own);
  one("specextend_kv_saved_bytes", "gauge", "What sessions would hold besides if nothing were shared.",
      gauges.kv.saved);
  head(out, "specextend_http_responses_total", "counter", "Responses by status.");
  for (const auto& [status, count] : responses_)
    out += fmt::format("specextend_http_responses_total{{{},status=\"{}\"}} {}\n", label, status, count);
  write_llama(out, gauges);
  write_keys(out, label, nullptr);
  return out;
}

}  // namespace sx::server
