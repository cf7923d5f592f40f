// Counters of the server, as Prometheus reads them. Names of vLLM where it has one.
#pragma once
#include <specextend/specextend.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace sx::server {

class Metrics {
 public:
  void count_response(int status);
  void count_cancelled();
  void add(const GenerateResult& result);
  // The whole page; the numbers of the queue come from the worker.
  std::string text(const std::string& model, size_t running, size_t waiting) const;

 private:
  mutable std::mutex mutex_;
  std::map<int, int64_t> responses_;
  int64_t finished_ = 0, cancelled_ = 0, prompt_tokens_ = 0, cached_tokens_ = 0, generated_tokens_ = 0;
  int64_t drafts_ = 0, draft_tokens_ = 0, accepted_tokens_ = 0;
  std::vector<int64_t> accepted_at_;
  double prompt_seconds_ = 0, decode_seconds_ = 0;
};

}  // namespace sx::server
