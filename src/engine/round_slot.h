// One request's part of a round: its tree, what was accepted of it, and where it lies in the pass.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "speculative/accept/accept.h"
#include "speculative/budget/draft_controller.h"
#include "speculative/draft/draft_probs.h"
#include "speculative/tree/tree.h"

namespace sx {

class Generation;

struct RoundSlot {
  Generation* request = nullptr;
  TokenTree* tree = nullptr;            // node 0 is the pending token
  DraftProbs* distributions = nullptr;  // what the nodes were drawn from; null: acceptance does not ask
  int history = 0;                      // tokens in the KV cache before the round
  int first_row = 0;                    // of the tree in the round's pass
  int drafted = 0;                      // tokens proposed, of which the tree may keep fewer
  int committed = 0;                    // accepted nodes whose cells stay
  double draft_ms = 0;                  // that the draft was expected to take; 0: not known
  bool drafting = false;                // a drafter was asked
  bool whole = true;                    // and allowed to draft as deep as it wanted
  bool looking = false;                 // the index is only held against what comes (DraftGrant::look)
  Token foreseen = kNoToken;            // what it said then
  DraftDecision decision{};             // why it drafts as it does, where a controller decides
  AcceptResult result;
  std::vector<uint8_t> broken;  // [tree size]: 1 at nodes whose logits are NaN or infinite

  void reserve(size_t nodes) { result.path.reserve(nodes), broken.reserve(nodes); }
  // The first token that the round chose.
  Token chosen() const { return result.path.size() > 1 ? tree->token(result.path[1]) : result.next; }
  std::span<const NodeId> committed_path() const { return std::span(result.path).first(size_t(committed)); }
};

}  // namespace sx
