// Every substring of one text with the number of places where it ends: a suffix automaton grown token by token.
// Following edges from a state spells what has come after its strings so far. Memory is taken once; growing allocates
// nothing.
#pragma once
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/token.h"

namespace sx {

class SuffixAutomaton {
 public:
  using State = int32_t;
  static constexpr State kRoot = 0, kNoState = -1;
  static constexpr int32_t kNoEdge = -1;
  // Longest walk up the suffix links for the sake of counts, per token.
  static constexpr int kCountWalk = 64;

  struct Edge {
    State from = kNoState;  // kNoState: an unused slot
    Token token = kNoToken;
    State to = kNoState;
    int32_t next = kNoEdge;  // another edge of `from`
  };

  // `capacity`: tokens of the longest text. 100 to 160 bytes per token.
  explicit SuffixAutomaton(int capacity);

  // Back to the empty text, in time proportional to what was there.
  void clear();
  // Amortised constant time: a text of n tokens has at most 2n states and 3n edges, and each is made once.
  void append(Token token);

  int size() const { return tokens_; }
  int capacity() const { return capacity_; }
  int states() const { return used_; }

  // The state of the whole text. Its link is the longest suffix that also ends earlier, that one's link the next
  // shorter suffix which ends at still more places, and so on up to the root (the empty string).
  State last() const { return last_; }
  State link(State s) const { return at(s).link; }
  // Of the longest string of the state.
  int length(State s) const { return at(s).length; }
  // Places where the state's strings end. Exact unless a suffix of the text had more than kCountWalk shorter states
  // above it (a long run of one token, say): then the shortest strings miss some of their places. 0 for the root.
  int count(State s) const { return at(s).count; }
  // kNoState: `token` never followed.
  State next(State s, Token token) const;
  // The edges of a state as a list, the newest first.
  int32_t first_edge(State s) const { return at(s).edge; }
  const Edge& edge(int32_t e) const { return edges_[static_cast<size_t>(e)]; }

 private:
  struct StateData {
    int32_t length, count;
    State link;
    int32_t edge;
  };

  const StateData& at(State s) const { return states_[static_cast<size_t>(s)]; }
  StateData& at(State s) { return states_[static_cast<size_t>(s)]; }
  State new_state(int length, int count, State link);
  // The slot of the edge, or the unused one where it belongs.
  int32_t slot(State from, Token token) const;
  State split(State parent, Token token, State state);

  int capacity_, tokens_ = 0, used_ = 0;
  int shift_ = 0;  // hash bits that are dropped
  State last_ = kRoot;
  std::vector<StateData> states_;  // [2 capacity]
  std::vector<Edge> edges_;        // open addressing by (from, token); a power of two, at most three quarters used
};

}  // namespace sx
