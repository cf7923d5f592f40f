// Makes acceptance rules, and runs the rules on distributions on a verified tree: the target's distributions come from
// the backend, the draft's from where the drafter kept them, random numbers from (seed, position, counter).
#include "speculative/accept/accept.h"

#include "base/error.h"
#include "base/rng.h"
#include "speculative/accept/accept_internal.h"

namespace sx {
namespace {

// Sets these random numbers apart from the noise of choose() and from a drafter's draws, which share the seed.
constexpr uint64_t kAcceptTag = 0x6a75646765646963ull;

class RuleAcceptance final : public Acceptance, private Distributions, private RandomSource {
 public:
  RuleAcceptance(std::unique_ptr<Rule> rule, Backend& backend, int vocab)
      : rule_(std::move(rule)), backend_(backend), vocab_(vocab) {}

  DrawMode draws() const override { return rule_->draws(); }

  void accept(const AcceptArgs& args, AcceptResult& result) override {
    SX_ASSERT(args.vocab == vocab_ && args.sampling != nullptr);
    SX_ASSERT(args.tree->size() == 1 || (args.draft_probs != nullptr && args.draft_probs->vocab() == vocab_));
    args_ = &args;
    key_ = mix64(args.sampling->seed ^ kAcceptTag);
    counter_ = 0;
    rule_->accept(*args.tree, *this, *this, result);
  }

 private:
  int vocab() const override { return vocab_; }

  void target(NodeId node, std::span<double> distribution) override {
    const PathInWindow path(*args_, node);
    distribution_at(backend_, *args_, node, *args_->sampling, distribution);
  }

  // Rows are kept in single precision; their sum is brought to 1 in double.
  void draft(NodeId node, std::span<double> distribution) override {
    const float* row = args_->draft_probs->row(node);
    double sum = 0;
    for (size_t t = 0; t < distribution.size(); ++t) sum += distribution[t] = double(row[t]);
    SX_ASSERT(sum > 0);
    for (double& q : distribution) q /= sum;
  }

  // In (0, 1): a probability of 0 never comes true, one of 1 always does.
  double uniform() { return uniform_from(hash_key(key_, args_->position, counter_++)); }

  bool flip(double probability) override { return uniform() < probability; }

  Token draw(std::span<const double> distribution) override {
    const double u = uniform();
    double below = 0;
    Token last = kNoToken;
    for (size_t t = 0; t < distribution.size(); ++t) {
      if (!(distribution[t] > 0)) continue;
      last = Token(t);
      below += distribution[t];
      if (u < below) break;
    }
    SX_ASSERT(last != kNoToken);
    return last;
  }

  const std::unique_ptr<Rule> rule_;
  Backend& backend_;
  const int vocab_;
  const AcceptArgs* args_ = nullptr;  // of the call under way
  uint64_t key_ = 0, counter_ = 0;
};

}  // namespace

std::unique_ptr<Rule> make_rule(AcceptKind kind, int vocab, int nodes, int depth) {
  SX_ASSERT(vocab > 0 && nodes > 0 && depth >= 0);
  depth = std::min(depth, nodes - 1);
  switch (kind) {
    case AcceptKind::kChain:
    case AcceptKind::kSpecInfer:
    case AcceptKind::kNoReplacement: return make_top_down_rule(kind, vocab);
    case AcceptKind::kBlockwise: return make_block_rule(vocab, depth);
    case AcceptKind::kTraversal: return make_traversal_rule(vocab, depth);
    case AcceptKind::kMatch:
    case AcceptKind::kTypical:
    case AcceptKind::kMargin: break;
  }
  SX_ASSERT(!"the kind is a rule on distributions");
  return nullptr;
}

std::unique_ptr<Acceptance> make_acceptance(const AcceptConfig& config, Backend& backend, const AcceptLimits& limits) {
  SX_ASSERT(limits.vocab > 0);
  switch (config.kind) {
    case AcceptKind::kMatch: return make_match(backend, limits);
    case AcceptKind::kTypical: return make_typical(config, backend, limits);
    case AcceptKind::kMargin: return make_margin(config, backend, limits);
    default: break;
  }
  auto rule = make_rule(config.kind, limits.vocab, limits.nodes, limits.depth);
  return std::make_unique<RuleAcceptance>(std::move(rule), backend, limits.vocab);
}

}  // namespace sx
