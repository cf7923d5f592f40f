#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

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

}  // namespace

void Metrics::count_response(int status) {
  const std::lock_guard lock(mutex_);
  ++responses_[status];
}

void Metrics::count_cancelled() {
  const std::lock_guard lock(mutex_);
  ++cancelled_;
}

void Metrics::add(const GenerateResult& r) {
  const std::lock_guard lock(mutex_);
  ++finished_;
  prompt_tokens_ += r.timings.prompt_tokens + r.timings.cached_tokens;
  cached_tokens_ += r.timings.cached_tokens;
  generated_tokens_ += r.timings.generated_tokens;
  prompt_seconds_ += r.timings.prompt_ms / 1e3;
  decode_seconds_ += r.timings.decode_ms / 1e3;
  drafts_ += r.spec.drafted_rounds;
  accepted_tokens_ += r.spec.accepted;
  for (int64_t tried : r.spec.tried_at_depth) draft_tokens_ += tried;  // a tree counts by its depth
  accepted_at_.resize(std::max(accepted_at_.size(), r.spec.accepted_at_depth.size()));
  for (size_t d = 0; d < r.spec.accepted_at_depth.size(); ++d) accepted_at_[d] += r.spec.accepted_at_depth[d];
}

std::string Metrics::text(const std::string& model, size_t running, size_t waiting) const {
  const std::lock_guard lock(mutex_);
  const std::string label = fmt::format("model_name=\"{}\"", escaped(model));
  std::string out;
  const auto head = [&](const char* name, const char* type, const char* what) {
    out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, what, name, type);
  };
  const auto one = [&](const char* name, const char* type, const char* what, auto value) {
    head(name, type, what);
    out += fmt::format("{}{{{}}} {}\n", name, label, value);
  };
  one("vllm:num_requests_running", "gauge", "Requests in the running batch.", running);
  one("vllm:num_requests_waiting", "gauge", "Requests in the queue.", waiting);
  one("vllm:prompt_tokens_total", "counter", "Prompt tokens of finished requests.", prompt_tokens_);
  one("vllm:prompt_tokens_cached_total", "counter", "Of them, found in a session's cache.", cached_tokens_);
  one("vllm:generation_tokens_total", "counter", "Generated tokens.", generated_tokens_);
  one("specextend_requests_finished_total", "counter", "Requests that ran to their end.", finished_);
  one("specextend_requests_cancelled_total", "counter", "Requests whose client left.", cancelled_);
  one("specextend_prompt_seconds_total", "counter", "Time spent on prompts.", prompt_seconds_);
  one("specextend_decode_seconds_total", "counter", "Time from the end of the prompt to the end of the batch.", decode_seconds_);
  head("specextend_http_responses_total", "counter", "Responses by status.");
  for (const auto& [status, count] : responses_)
    out += fmt::format("specextend_http_responses_total{{{},status=\"{}\"}} {}\n", label, status, count);
  one("vllm:spec_decode_num_drafts_total", "counter", "Rounds with a draft.", drafts_);
  one("vllm:spec_decode_num_draft_tokens_total", "counter", "Drafted tokens, a tree by its depth.", draft_tokens_);
  one("vllm:spec_decode_num_accepted_tokens_total", "counter", "Accepted drafted tokens.", accepted_tokens_);
  head("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter", "Accepted drafted tokens by place in the draft.");
  for (size_t d = 0; d < accepted_at_.size(); ++d)
    out += fmt::format("vllm:spec_decode_num_accepted_tokens_per_pos_total{{{},position=\"{}\"}} {}\n", label, d, accepted_at_[d]);
  return out;
}

}  // namespace sx::server
