// Acceptance of a verified tree: which path becomes text, and which token follows it. `match` (the default everywhere)
// lets the target choose at every node exactly as plain decoding would, so that the bytes are those of plain decoding.
// The other exact rules keep the target's distribution but not its draws; lossy rules keep neither.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "speculative/draft/draft_probs.h"
#include "speculative/accept/penalties.h"
#include "speculative/tree/tree.h"

namespace sx {

class TreeGrammar;

enum class AcceptKind { kMatch, kChain, kBlockwise, kSpecInfer, kNoReplacement, kTraversal, kTypical, kMargin };

struct AcceptConfig {
  AcceptKind kind = AcceptKind::kMatch;
  float epsilon = 0.09f, alpha = 0.3f;  // typical: accept p > min(epsilon, alpha exp(-entropy))
  float margin = 0.9f;  // margin: the second choice passes when it has at least this share of the first's probability
};

struct AcceptResult {
  std::vector<NodeId> path;  // accepted nodes, beginning with node 0, ascending
  Token next = kNoToken;     // chosen after the last of them
};

struct AcceptArgs {
  const TokenTree* tree = nullptr;
  const float* logits = nullptr;  // [size, vocab] of the nodes
  int vocab = 0;
  uint64_t position = 0;  // of the token that follows node 0
  const Sampling* sampling = nullptr;
  std::span<const TokenBias> bias;
  PenaltyWindow* window = nullptr;          // holds the text up to and including the pending token; left as it was
  const DraftProbs* draft_probs = nullptr;  // for rules on drawn trees: what the children were drawn from
  TreeGrammar* grammar = nullptr;           // of the text up to and including the pending token; null: any text
  uint8_t* broken =
      nullptr;  // [size]: set to 1 at nodes that were looked at and whose logits are no numbers; null: nobody asks
};

class Acceptance {
 public:
  virtual ~Acceptance() = default;
  virtual DrawMode draws() const { return DrawMode::kBest; }
  virtual bool lossless() const { return true; }
  // Whether this is `match`: then several requests may walk together (MatchWalks).
  virtual bool matches() const { return false; }
  virtual void accept(const AcceptArgs& args, AcceptResult& result) = 0;
};

// Walks of `match` down the trees of several requests, in step: what the target chooses at the nodes where they stand
// is one call of choose(), which has to wait for the backend, whatever the number of requests.
class MatchWalks {
 public:
  MatchWalks(Backend& backend, int walks, int nodes);  // `nodes`: of all trees together
  void add(const AcceptArgs& args, AcceptResult& result);
  void run();  // all that were added; then there are none

 private:
  struct Walk {
    AcceptArgs args;
    AcceptResult* result = nullptr;
    NodeId node = 0;         // where it stands; kNoNode: it has ended
    bool all_nodes = false;  // it asks for the choices at all nodes at once
    size_t first = 0;        // row of the present call
  };
  void ask(Walk& walk);
  void follow(Walk& walk);

  Backend& backend_;
  const bool all_nodes_;  // are cheap at once
  std::vector<Walk> walks_;
  std::vector<ChooseRow> rows_;
  std::vector<Token> chosen_;
};

// Nothing is allocated after this. `nodes`: largest tree, node 0 included; `depth`: its deepest level.
struct AcceptLimits {
  int vocab = 0, nodes = kMaxTreeNodes, depth = kMaxTreeNodes - 1;
};
std::unique_ptr<Acceptance> make_acceptance(const AcceptConfig& config, Backend& backend, const AcceptLimits& limits);

// --- The rules on distributions. They know no model: the enumeration tests call them with tables.

// Where a rule gets its random numbers.
class RandomSource {
 public:
  virtual ~RandomSource() = default;
  virtual bool flip(double probability) = 0;                     // true with that probability
  virtual Token draw(std::span<const double> distribution) = 0;  // distribution sums to 1
};

// The target's and the draft's distributions at the nodes of a tree.
class Distributions {
 public:
  virtual ~Distributions() = default;
  virtual int vocab() const = 0;
  virtual void target(NodeId node, std::span<double> distribution) = 0;  // the distribution of the token after `node`
  virtual void draft(NodeId node, std::span<double> distribution) = 0;  // the distribution its children were drawn from
};

class Rule {
 public:
  virtual ~Rule() = default;
  virtual DrawMode draws() const = 0;
  virtual bool chains_only() const = 0;
  virtual void accept(const TokenTree& tree, Distributions& distributions, RandomSource& random,
                      AcceptResult& result) = 0;
};

// kChain, kBlockwise, kSpecInfer, kNoReplacement, kTraversal. `depth`: deepest level of a tree.
std::unique_ptr<Rule> make_rule(AcceptKind kind, int vocab, int nodes, int depth);

}  // namespace sx
