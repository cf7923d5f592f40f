// An engine without a model, for tests of the scheduler: tokens follow from the text before them, prompts take one step
// per `chunk` tokens, and steps happen when the test allows them.
#pragma once
#include <specextend/specextend.h>

#include <algorithm>
#include <istream>
#include <iterator>
#include <ostream>
#include <semaphore>
#include <stdexcept>
#include <vector>

namespace sx::testing {

class FakeEngine;

// One token per byte.
class ByteTokenizer : public Tokenizer {
 public:
  std::vector<Token> tokenize(std::string_view text, bool, bool) const override { return {text.begin(), text.end()}; }
  std::string detokenize(std::span<const Token> tokens, bool, bool) const override {
    return {tokens.begin(), tokens.end()};
  }
  std::string token_text(Token token) const override { return token_bytes(token); }
  std::string apply_template_json(std::string_view, bool, std::string_view, std::string_view) const override {
    return {};
  }
  std::string token_bytes(Token token) const override { return std::string(1, char(token)); }
  bool is_end(Token) const override { return false; }
};

class FakeSession : public Session {
 public:
  explicit FakeSession(FakeEngine& engine);
  ~FakeSession() override;
  GenerateResult generate(std::span<const Token>, const GenerateOptions&) override {
    throw std::logic_error("not faked");
  }
  std::span<const float> evaluate(std::span<const Token>, int) override { throw std::logic_error("not faked"); }
  void truncate(int length) override { tokens.resize(size_t(length)); }
  int length() const override { return int(tokens.size()); }
  std::span<const Token> text() const override { return tokens; }
  void copy_from(const Session& other, int length) override {
    tokens.assign(other.text().begin(), other.text().begin() + length);
  }
  void save(std::ostream& to) const override;  // token by token, as are restored
  void restore(std::istream& from) override;
  size_t save_bytes() const override { return tokens.size() * sizeof(Token); }
  const Tokenizer& tokenizer() const override;

  std::vector<Token> tokens;

 private:
  FakeEngine& engine_;
};

class FakeBatch : public Batch {
 public:
  explicit FakeBatch(FakeEngine& engine) : engine_(engine) {}
  void add(const Request& request) override;
  bool step() override;
  std::vector<Finished> take_finished() override { return std::exchange(finished_, {}); }

 private:
  struct Running {
    Request request;
    GenerateResult result;
    std::string error;
    bool models_fault = false;
  };
  bool advance(Running& running);  // true: it has ended

  FakeEngine& engine_;
  std::vector<Running> running_;
  std::vector<Finished> finished_;
};

class FakeEngine : public Engine {
 public:
  explicit FakeEngine(int sessions) { options_.max_sessions = sessions, options_.context = 1000; }

  std::counting_semaphore<1 << 30> steps{0};  // that the batch may still do
  std::atomic<bool> fail_step{false}, fail_start{false};
  std::atomic<int> prompt_tokens{0}, open{0}, opened{0};
  std::atomic<int> moving{0}, steps_while_moving{0};  // states
  int chunk = 1 << 20;

  std::unique_ptr<Session> start() override {
    if (fail_start) throw Error("no session");
    if (open == options_.max_sessions) throw Error("too many sessions");
    return std::make_unique<FakeSession>(*this);
  }
  std::unique_ptr<Batch> batch() override { return std::make_unique<FakeBatch>(*this); }
  std::vector<GenerateResult> generate(std::span<const Request>) override { throw std::logic_error("not faked"); }
  int context() const override { return options_.context; }
  int vocab() const override { return 256; }
  const EngineOptions& options() const override { return options_; }
  std::vector<std::pair<std::string, size_t>> device_memory() const override { return {}; }
  std::string backend() const override { return "fake"; }
  std::string kv_type() const override { return "none"; }
  const Tokenizer& tokenizer() const override { return tokenizer_; }

 private:
  EngineOptions options_;
  ByteTokenizer tokenizer_;
};

inline FakeSession::FakeSession(FakeEngine& engine) : engine_(engine) { ++engine_.open, ++engine_.opened; }
inline FakeSession::~FakeSession() { --engine_.open; }

inline const Tokenizer& FakeSession::tokenizer() const { return engine_.tokenizer(); }

inline void FakeSession::save(std::ostream& to) const {
  ++engine_.moving;
  for (const Token& token : tokens) to.write(reinterpret_cast<const char*>(&token), sizeof token);
  --engine_.moving;
}

inline void FakeSession::restore(std::istream& from) {
  ++engine_.moving;
  tokens.clear();
  for (Token token; from.read(reinterpret_cast<char*>(&token), sizeof token);) tokens.push_back(token);
  --engine_.moving;
}

inline void FakeBatch::add(const Request& request) {
  if (request.options->grammar == "bad") throw Error("grammar: bad");
  auto& tokens = static_cast<FakeSession*>(request.session)->tokens;
  const auto before_last = request.prompt.first(request.prompt.size() - 1);
  const auto cached = std::ranges::mismatch(tokens, before_last).in1 - tokens.begin();
  tokens.resize(size_t(cached));
  running_.push_back({request, {}, {}});
  running_.back().result.timings.cached_tokens = int(cached);
  if (request.options->on_prefill) request.options->on_prefill(int(cached), int(before_last.size()));
}

inline bool FakeBatch::advance(Running& running) {
  auto& tokens = static_cast<FakeSession*>(running.request.session)->tokens;
  const auto prompt = running.request.prompt;
  const GenerateOptions& o = *running.request.options;
  GenerateResult& r = running.result;
  if (o.cancelled && o.cancelled()) {
    r.reason = FinishReason::kCancelled;
    return true;
  }
  if (tokens.size() < prompt.size() - 1) {
    const size_t n = std::min(size_t(engine_.chunk), prompt.size() - 1 - tokens.size());
    const std::vector<float> logits(size_t(engine_.vocab()), 0);
    for (size_t i = 0; o.on_prompt_token && i < n; ++i) o.on_prompt_token({prompt[tokens.size() + i + 1], 0, logits});
    tokens.insert(tokens.end(), prompt.begin() + ptrdiff_t(tokens.size()),
                  prompt.begin() + ptrdiff_t(tokens.size() + n));
    engine_.prompt_tokens += int(n);
    r.timings.prompt_tokens += int(n);
    if (o.on_prefill) o.on_prefill(int(tokens.size()), int(prompt.size()) - 1);
    return false;
  }
  if (o.grammar == "ambiguous" || o.grammar == "broken") {
    running.error = o.grammar == "broken" ? "logits are NaN" : "too ambiguous";
    running.models_fault = o.grammar == "broken";
    return true;
  }
  uint64_t sum = o.sampling.seed;
  tokens.push_back(r.tokens.empty() ? prompt.back() : r.tokens.back());
  for (Token token : tokens) sum = sum * 31 + uint64_t(token);
  const Token next = Token('a' + sum % 26);
  r.tokens.push_back(next);
  const std::string text(1, char(next));
  r.text += text;
  r.timings.generated_tokens = int(r.tokens.size());
  if (o.on_token) o.on_token({next, 0, {}});
  if (o.on_text) o.on_text(text);
  RoundInfo round;
  round.timings = r.timings;
  if (o.on_round) o.on_round(round);
  r.reason = FinishReason::kLength;
  return int(r.tokens.size()) == o.max_tokens;
}

inline bool FakeBatch::step() {
  if (running_.empty()) return false;
  engine_.steps.acquire();
  if (engine_.moving > 0) ++engine_.steps_while_moving;
  if (engine_.fail_step.exchange(false)) throw std::runtime_error("the device caught fire");
  for (auto it = running_.begin(); it != running_.end();) {
    const bool ended = advance(*it);
    if (ended) finished_.push_back({it->request.session, std::move(it->result), it->error, it->models_fault});
    it = ended ? running_.erase(it) : it + 1;
  }
  return true;
}

}  // namespace sx::testing
