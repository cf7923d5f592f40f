// Drafting with a suffix automaton over prompt and output, after SuffixDecoding: from each of the longest suffixes that
// have come before, a best-first tree of what followed them; the tree that promises most is taken. Earlier answers
// (SuffixDecoding's global tree) and a fixed text (REST) are looked up in the same way.
#include <algorithm>
#include <memory>
#include <vector>

#include "base/json_text.h"
#include "speculative/draft/index.h"
#include "speculative/draft/registry.h"
#include "speculative/draft/suffix_automaton.h"
#include "speculative/draft/text_store.h"

namespace sx {
namespace {

using State = SuffixAutomaton::State;

constexpr int kMatches = 4;               // suffixes that are tried, longest first
constexpr int kChildren = 64;             // continuations of a state that are looked at, newest first
constexpr int kLinkWalk = 64;             // links followed to a suffix of at most match_max tokens
constexpr size_t kMostStored = 64 << 20;  // bytes of a text to copy from; an index has some 150 for each token
constexpr float kLeastPath = 1e-3f;
constexpr int kKeptBefore = 32;  // tokens kept of the text before an answer, so that its beginning can be found

// A node that may be drafted next. All in the heap are paths of which none leads to another, so their shares sum to at
// most 1 and 1 / least share bounds their number.
struct Growth {
  float probability, share_of_path, share;
  int32_t order;  // ties: first come, first served
  int32_t parent;
  Token token;
  State state;
};

bool worse(const Growth& a, const Growth& b) {
  return a.probability != b.probability ? a.probability < b.probability : a.order > b.order;
}

class SuffixDrafter final : public IndexDrafter {
 public:
  SuffixDrafter(const IndexConfig& config, const TreeConfig& tree, const IndexLimits& limits,
                std::span<const Token> fixed)
      : IndexDrafter(tree, limits),
        config_(config),
        least_path_(std::max(config.min_prob, kLeastPath)),
        automata_(size_t(limits.slots)),
        store_(config.store, fixed) {
    if (config.match_max < 1) fail("suffix drafter: longest match of {} tokens, expected at least 1", config.match_max);
    candidate_.nodes.reserve(size_t(max_nodes()) + 1);
    heap_.reserve(static_cast<size_t>(1 / least_path_) + kChildren);
  }
  void remember(std::span<const Token> text, int answer) override {
    if (answer > 0) store_.add(text.last(std::min(text.size(), static_cast<size_t>(answer) + kKeptBefore)));
  }

 protected:
  void make_index(SeqId seq, int capacity) override {
    automata_[size_t(seq)] = std::make_unique<SuffixAutomaton>(capacity);
  }
  void clear_index(SeqId seq) override { automata_[size_t(seq)]->clear(); }
  void extend_index(SeqId seq, std::span<const Token> text, int from, int to) override {
    for (int i = from; i < to; ++i) automata_[size_t(seq)]->append(text[size_t(i)]);
  }

  Cut propose(SeqId seq, std::span<const Token> text, const TreeLimits& limits, Proposal& proposal) override {
    const SuffixAutomaton& automaton = *automata_[size_t(seq)];
    // The state of the whole text has no continuation; its link is the longest suffix that has.
    State state = automaton.link(automaton.last());
    for (int i = 0; i < kLinkWalk && automaton.length(state) > config_.match_max; ++i) {
      if (automaton.length(automaton.link(state)) < config_.match_max) break;
      state = automaton.link(state);
    }
    Cut best;
    const auto try_matches = [&](const SuffixAutomaton& in, State at, int length) {
      for (int i = 0; i < kMatches && at != SuffixAutomaton::kRoot; ++i, at = in.link(at), length = in.length(at)) {
        candidate_.reset(text.back());
        grow({in, calibration(seq), limits, at, std::min(length, config_.match_max)});
        const Cut found = cut(candidate_, limits.verify_cost);
        if (proposal.drafted() == 0 || found.worth > best.worth) std::swap(proposal, candidate_), best = found;
      }
    };
    try_matches(automaton, state, automaton.length(state));
    for (const TextStore::Match& match : store_.find(text, config_.match_max)) {
      if (match.length > 0) try_matches(*match.automaton, match.state, match.length);
    }
    return best;
  }

 private:
  struct Match {
    const SuffixAutomaton& automaton;
    const Calibration& calibration;
    const TreeLimits& limits;
    State state;
    int length;
  };

  // Grows candidate_ from node 0.
  void grow(const Match& match) {
    const float budget = config_.factor * static_cast<float>(match.length) + config_.offset;
    const int nodes = static_cast<int>(std::min(static_cast<float>(match.limits.nodes), budget));
    heap_.clear();
    order_ = 0;
    if (nodes > 0) expand(match, 0, match.state, 1);
    while (candidate_.drafted() < nodes && !heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), worse);
      const Growth g = heap_.back();
      heap_.pop_back();
      const int depth = candidate_.nodes[size_t(g.parent)].depth + 1;
      candidate_.nodes.push_back({g.parent, g.token, depth, g.share, g.probability, 0});
      if (depth < match.limits.depth && candidate_.drafted() < nodes)
        expand(match, candidate_.drafted(), g.state, g.share_of_path);
    }
  }

  // Puts the continuations of `state`, where `node` of the candidate has led, on the heap.
  void expand(const Match& match, int node, State state, float share_of_path) {
    const SuffixAutomaton& automaton = match.automaton;
    // A copy that has reached the end of the text goes on as the text's longest match does: repetition repeats.
    if (automaton.first_edge(state) == SuffixAutomaton::kNoEdge) state = automaton.link(state);
    if (state == SuffixAutomaton::kRoot) return;
    int total = 0, scanned = 0;
    int32_t e = automaton.first_edge(state);
    for (; e != SuffixAutomaton::kNoEdge && scanned < kChildren; e = automaton.edge(e).next, ++scanned)
      total += automaton.count(automaton.edge(e).to);
    if (e != SuffixAutomaton::kNoEdge) total = std::max(total, automaton.count(state));
    Proposal::Node& parent = candidate_.nodes[size_t(node)];
    parent.bucket = Calibration::bucket(match.length + parent.depth, total);
    const float chance = parent.probability * match.calibration.chance(parent.bucket);
    e = automaton.first_edge(state);
    for (int i = 0; i < scanned; ++i, e = automaton.edge(e).next) {
      const SuffixAutomaton::Edge& edge = automaton.edge(e);
      const float share = static_cast<float>(automaton.count(edge.to)) / static_cast<float>(total);
      if (edge.token < 0) continue;  // the end of an earlier text
      if (share_of_path * share < least_path_ || heap_.size() == heap_.capacity()) continue;
      heap_.push_back({chance * share, share_of_path * share, share, order_++, node, edge.token, edge.to});
      std::push_heap(heap_.begin(), heap_.end(), worse);
    }
  }

  IndexConfig config_;
  float least_path_;
  std::vector<std::unique_ptr<SuffixAutomaton>> automata_;  // [slots]
  TextStore store_;
  Proposal candidate_;
  std::vector<Growth> heap_;
  int32_t order_ = 0;
};

// The tokens of setting store-file; none if it is not set.
std::vector<Token> stored_text(const IndexConfig& config, const TokenCodec& tokenizer) {
  if (config.store_file.empty()) return {};
  auto tokens = tokenizer.encode(read_text_file(config.store_file, kMostStored), false, false);
  if (tokens.empty()) fail("'{}' (speculation setting store-file) is empty", config.store_file);
  return tokens;
}

}  // namespace

std::unique_ptr<Drafter> make_suffix_drafter(const IndexConfig& config, const TreeConfig& tree,
                                             const IndexLimits& limits, std::span<const Token> fixed) {
  return std::make_unique<SuffixDrafter>(config, tree, limits, fixed);
}

const DrafterEntry kSuffixDrafter{
    .name = "suffix",
    .claims = [](const DraftSource& source) { return source.kind == DrafterKind::kSuffix; },
    .make =
        [](const DraftContext& c) {
          return make_suffix_drafter(c.config->index, c.tree, {c.slots, c.context, c.target->config().vocab},
                                     stored_text(c.config->index, *c.tokenizer));
        },
};

}  // namespace sx
