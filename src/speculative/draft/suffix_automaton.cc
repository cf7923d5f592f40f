// The classical online construction (Blumer et al.), with edges in one hash table and counts kept as the text grows.
#include "speculative/draft/suffix_automaton.h"

#include <algorithm>
#include <bit>

namespace sx {

SuffixAutomaton::SuffixAutomaton(int capacity) : capacity_(capacity) {
  SX_ASSERT(capacity > 0 && capacity <= (1 << 28));
  const uint64_t slots = std::bit_ceil(std::max<uint64_t>(16, 4 * static_cast<uint64_t>(capacity)));
  shift_ = 64 - std::countr_zero(slots);
  edges_.resize(slots);
  states_.resize(2 * static_cast<size_t>(capacity) + 1);
  new_state(0, 0, kNoState);
}

void SuffixAutomaton::clear() {
  if (tokens_ > capacity_ / 8) {
    std::fill(edges_.begin(), edges_.end(), Edge());
  } else {  // little is used of a table that may be large
    for (State s = 0; s < used_; ++s)
      for (int32_t e = at(s).edge; e != kNoEdge; e = edge(e).next) edges_[static_cast<size_t>(e)].from = kNoState;
  }
  tokens_ = used_ = 0;
  last_ = new_state(0, 0, kNoState);
}

SuffixAutomaton::State SuffixAutomaton::new_state(int length, int count, State link) {
  at(used_) = {length, count, link, kNoEdge};
  return used_++;
}

int32_t SuffixAutomaton::slot(State from, Token token) const {
  uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(from)) << 32 | static_cast<uint32_t>(token);
  key *= 0xd6e8feb86659fd93ull;
  key = (key ^ key >> 32) * 0x9e3779b97f4a7c15ull;
  const size_t mask = edges_.size() - 1;
  size_t i = key >> shift_;
  while (edges_[i].from != kNoState && (edges_[i].from != from || edges_[i].token != token)) i = (i + 1) & mask;
  return static_cast<int32_t>(i);
}

SuffixAutomaton::State SuffixAutomaton::next(State s, Token token) const {
  const Edge& found = edge(slot(s, token));
  return found.from == kNoState ? kNoState : found.to;
}

void SuffixAutomaton::append(Token token) {
  SX_ASSERT(tokens_ < capacity_);
  ++tokens_;
  const State added = new_state(tokens_, 1, kRoot);
  for (State p = last_; p != kNoState; p = at(p).link) {
    const int32_t e = slot(p, token);
    Edge& found = edges_[static_cast<size_t>(e)];
    if (found.from != kNoState) {
      // The suffix through p has come before: the new state's link is where p's longest string leads.
      at(added).link = at(found.to).length == at(p).length + 1 ? found.to : split(p, token, found.to);
      break;
    }
    found = {p, token, added, at(p).edge};
    at(p).edge = e;
  }
  last_ = added;
  State s = at(added).link;
  for (int walked = 0; s != kRoot && walked < kCountWalk; ++walked, s = at(s).link) ++at(s).count;
}

// The strings of `state` up to the one that `token` makes of parent's longest get a state of their own, because they
// now end at one place more than the longer ones.
SuffixAutomaton::State SuffixAutomaton::split(State parent, Token token, State state) {
  const State copy = new_state(at(parent).length + 1, at(state).count, at(state).link);
  int32_t* tail = &at(copy).edge;
  for (int32_t e = at(state).edge; e != kNoEdge; e = edge(e).next) {
    const int32_t c = slot(copy, edge(e).token);
    edges_[static_cast<size_t>(c)] = {copy, edge(e).token, edge(e).to, kNoEdge};
    *tail = c;
    tail = &edges_[static_cast<size_t>(c)].next;
  }
  at(state).link = copy;
  for (State p = parent; p != kNoState; p = at(p).link) {
    Edge& found = edges_[static_cast<size_t>(slot(p, token))];
    if (found.from == kNoState || found.to != state) break;
    found.to = copy;
  }
  return copy;
}

}  // namespace sx
