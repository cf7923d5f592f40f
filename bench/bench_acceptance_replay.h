// Acceptance without verification. Verification never changes the text, so the target writes its greedy text once, and
// every configuration then drafts along it round by round as in an engine: the part of its tree that agrees with the
// text is what the target would have accepted, and the states and queries that the verifying pass would have shown are
// those of the recorded text.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/speculation.h"
#include "engine/tokenizer.h"

namespace sx::bench {

struct Configuration {
  std::string name;
  SpecConfig config;
};

// "name: preset=sd draft-model=PATH cache=retrieval budget=1024": the settings of the command line in any order.
// "{drafts}" in a value stands for `drafts`. Throws sx::Error.
Configuration parse_configuration(std::string_view line, const std::string& drafts);
// One per line; empty lines and those that begin with # are skipped.
std::vector<Configuration> read_configurations(const std::string& path, const std::string& drafts);

struct ReplayRound {
  int known = 0;  // tokens of the answer known before the round
  int drafted = 0, accepted = 0;
  int refreshes = 0;    // of the cache so far
  double evidence = 1;  // share of the evidence in the working cache
  double draft_ms = 0, cache_ms = 0, other_ms = 0;
  std::vector<Token> tree;  // tokens of the verified nodes, the pending one first
};

struct Replayed {
  std::vector<ReplayRound> rounds;
  double prefill_ms = 0;  // of the drafter
};

// Cells [begin, end) of the text.
struct CellRange {
  int begin = 0, end = 0;
};

struct ReplayOptions {
  std::string model;
  int context = 0, chunk = 512, threads = 0;
  float repeat_penalty = 1;  // over the last 64 tokens
};

class Replay {
 public:
  Replay(const ReplayOptions& options, std::vector<Configuration> configurations);
  ~Replay();

  const TokenizerImpl& tokenizer() const { return *tokenizer_; }
  std::string backend() const { return backend_->name(); }
  size_t size() const { return players_.size(); }
  const Configuration& configuration(size_t i) const;
  int most_nodes() const;  // of any configuration's tree

  // The target reads the prompt and answers greedily with at most `count` tokens; the one that ends the text is the
  // last. A repeat penalty counts, for it and for the drafts. It stops early where `go_on` (of the answer so far) says
  // so.
  using GoOn = std::function<bool(std::span<const Token>)>;
  std::span<const Token> answer(std::span<const Token> prompt, int count, const GoOn& go_on = nullptr);
  double target_prefill_ms() const { return prefill_ms_; }
  double target_step_ms() const { return step_ms_; }  // mean over the answer
  // Configuration i drafts along the last answer, once per answer; the first `count` tokens of it, or all.
  Replayed play(size_t i, CellRange evidence = {}, int count = -1);

 private:
  struct Player;
  struct Tap {
    size_t width = 0;
    std::vector<float> rows;  // [answer, width], of the tokens before those of the answer
  };
  void load(const ReplayOptions& options);
  void probe();
  void extend(std::span<const Token> tokens, int outputs);
  void record();

  std::unique_ptr<Backend> backend_;
  std::shared_ptr<const ModelFile> file_;
  std::unique_ptr<TokenizerImpl> tokenizer_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvStore> kv_;
  std::vector<Configuration> configurations_;
  std::vector<std::shared_ptr<const HeadFile>> heads_;  // per configuration, or null
  std::vector<std::unique_ptr<Player>> players_;
  int context_, chunk_;
  Sampling sampling_;                // greedy
  TapSpec taps_;                     // what any configuration reads
  std::vector<Tap> hidden_, query_;  // in the order of taps_
  std::vector<Token> text_;          // prompt and answer
  std::vector<int32_t> positions_;
  const StepOutputs* step_ = nullptr;
  int length_ = 0;  // tokens in the target's cache
  int limit_ = 0;   // tokens the answer could have had
  size_t prompt_ = 0;
  double prefill_ms_ = 0, step_ms_ = 0;
};

}  // namespace sx::bench
