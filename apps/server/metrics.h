// Counters of the server, as Prometheus reads them. Names of vLLM where it has one; ours begin with specextend_.
#pragma once
#include <specextend/kv_memory.h>
#include <specextend/specextend.h>

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace sx::server {

// How often a value fell below each of some bounds.
class Histogram {
 public:
  static constexpr std::array<double, 16> kSeconds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                   0.5,   1,      2.5,   5,    10,    30,   120, 600};
  static constexpr std::array<double, 16> kTokens{1,   2,    5,    10,   20,    50,    100,   200,
                                                  500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
  static constexpr std::array<double, 6> kFew{0, 1, 2, 5, 10, 20};
  explicit Histogram(std::span<const double> bounds = kSeconds) : bounds_(bounds), counts_(bounds.size() + 1) {}
  void observe(double value);
  // The lines of one family; `labels` without braces.
  void write(std::string& out, const char* name, const char* what, const std::string& labels) const;

 private:
  std::span<const double> bounds_;
  std::vector<int64_t> counts_;  // the last: above all bounds
  double sum_ = 0;
};

// What only the worker knows at the moment of asking.
struct Gauges {
  size_t running = 0, waiting = 0;
  double cache_share = 0;  // of the cells of all sessions, those that requests work on, 0..1
  size_t saved_states = 0, saved_bytes = 0, disk_bytes = 0;
  KvMemory kv{};
  int64_t cells = 0;        // of all sessions
  int sessions = 1;         // of `cells` in equal parts
  std::string cell_type{};  // of their numbers
};

// Times of one request as its client sees them, seconds.
struct RequestTimes {
  double queued = 0, first_token = 0, whole = 0;
};
// What it asked for.
struct RequestSize {
  int choices = 1;
  int max_tokens = -1;  // -1: no bound
};

class Metrics {
 public:
  void count_response(int status);
  void count_cancelled();
  void count_timeout();
  // A request has got from `before` to `now`: counted as it goes, so that those that are cancelled or fail count, too.
  void add_progress(const Timings& before, const Timings& now);
  // A round of one request, with `context` tokens of history; `gap`: seconds since its previous one, 0: it was the
  // first.
  void add_round(const RoundInfo& round, int context, double gap);
  // A request that ran to its end.
  void add(const GenerateResult& result, const RequestTimes& times, RequestSize asked = {});
  void count_step();  // of all requests that run
  void add_refreshes(int count);
  // A request of a named API key that ran, to its end or not; one that was refused for the key's limits.
  void add_key(const std::string& key, int64_t prompt_tokens, int64_t generated_tokens);
  void count_rejected(const std::string& key);
  // The whole page, and what a key may see of it where others see all.
  std::string text(const std::string& model, const Gauges& gauges) const;
  std::string text_of_key(const std::string& model, const std::string& key) const;

 private:
  // Rounds by the length of the text they continued.
  struct Rounds {
    int64_t rounds = 0, drafts = 0, drafted = 0, accepted = 0;
    double seconds = 0;
  };
  static constexpr std::array<const char*, 5> kContexts{"0-1k", "1k-4k", "4k-16k", "16k-64k", "64k+"};

  struct KeyCounts {
    int64_t requests = 0, prompt_tokens = 0, generated_tokens = 0, rejected = 0;
  };
  void write_llama(std::string& out, const Gauges& gauges) const;
  void write_requests(std::string& out, const std::string& label) const;
  void write_keys(std::string& out, const std::string& label, const std::string* only) const;

  mutable std::mutex mutex_;
  std::map<std::string, KeyCounts> keys_;
  std::map<int, int64_t> responses_;
  std::map<std::string, int64_t> finished_;  // by reason
  int64_t cancelled_ = 0, timeouts_ = 0, prompt_tokens_ = 0, cached_tokens_ = 0, generated_tokens_ = 0;
  int64_t drafts_ = 0, draft_tokens_ = 0, accepted_tokens_ = 0, refreshes_ = 0, steps_ = 0;
  int64_t step_tokens_ = 0;  // of prompts and answers, in the step that runs
  int longest_ = 0;          // text that a round continued, tokens
  std::vector<int64_t> accepted_at_;
  std::vector<int> depths_;  // scratch: of a tree's nodes
  double prompt_seconds_ = 0, decode_seconds_ = 0;
  std::array<Rounds, kContexts.size()> by_context_{};
  Histogram queued_, first_token_, per_token_, between_, whole_, inference_, prefill_, decode_;
  Histogram prompt_sizes_{Histogram::kTokens}, answer_sizes_{Histogram::kTokens}, bounds_asked_{Histogram::kTokens},
      step_sizes_{Histogram::kTokens}, choices_asked_{Histogram::kFew}, preemptions_{Histogram::kFew};
};

}  // namespace sx::server
