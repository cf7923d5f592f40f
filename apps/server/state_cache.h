// States of sessions kept in memory: what a session held before another text took its place. Bounded by bytes; what has not
// been asked for longest goes first.
#pragma once
#include <specextend/specextend.h>

#include <cstddef>
#include <list>
#include <span>
#include <string>
#include <vector>

namespace sx::server {

// Tokens two texts have in common from their beginning.
size_t common_prefix(std::span<const Token> a, std::span<const Token> b);

class StateCache {
 public:
  explicit StateCache(size_t most_bytes) : most_(most_bytes) {}

  // The longest beginning of `text` that a state holds.
  size_t longest(std::span<const Token> text) const;
  // Keeps the session's state, in place of states of beginnings of its text. Not if it is too large or held already.
  void save(const Session& session);
  // Puts the state that holds most of `text` into the session. False: there is none, or it would not go (and is dropped).
  bool restore(std::span<const Token> text, Session& session);

  size_t size() const { return states_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  struct State {
    std::vector<Token> text;
    std::string blob;
  };
  using States = std::list<State>;  // most recently used first
  void drop(States::iterator state);

  const size_t most_;
  size_t bytes_ = 0;
  States states_;
};

}  // namespace sx::server
