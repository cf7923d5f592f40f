// States of sessions: what a session held before another text took its place. They are kept in memory, and beyond its
// bound on disk if there is one; what has not been asked for longest goes first. A state belongs to the scope (whose
// texts it may be part of) that it was saved for, and no other scope finds it.
#pragma once
#include <specextend/specextend.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "server/state_spill.h"
#include "server/turns.h"

namespace sx::server {

// Tokens two texts have in common from their beginning.
size_t common_prefix(std::span<const Token> a, std::span<const Token> b);

class StateCache {
 public:
  // disk: bytes that files may have in the folder; 0: none. Throws sx::Error if it cannot make any.
  explicit StateCache(size_t most_bytes, size_t disk = 0, const std::string& folder = {});

  // The longest beginning of `text` that a state holds.
  size_t longest(uint64_t scope, std::span<const Token> text) const;
  // Keeps the session's state, in place of states of beginnings of its text. Not if it is too large or held already.
  // While it pauses, the session must stay as it is; the cache may be used.
  void save(uint64_t scope, const Session& session, Turns* turns = nullptr);
  // Puts the state that holds most of `text` into the session. False: there is none, there is no memory for its cells,
  // or it would not go (and is dropped).
  bool restore(uint64_t scope, std::span<const Token> text, Session& session, Turns* turns = nullptr);

  size_t size() const { return states_.size(); }
  size_t bytes() const { return bytes_; }
  size_t disk_bytes() const { return disk_bytes_; }
  StateSpill* disk() { return spill_.get(); }

 private:
  struct State {
    uint64_t scope;
    std::vector<Token> text;
    size_t bytes;
    std::shared_ptr<const std::string> blob;  // stays while it is read, whatever becomes of the state; null: on disk
    std::shared_ptr<StateSpill::File> file{};
  };
  using States = std::list<State>;  // most recently used first
  void drop(States::iterator state);
  void make_room();

  const size_t most_, most_disk_;
  size_t bytes_ = 0, disk_bytes_ = 0;
  std::unique_ptr<StateSpill> spill_;  // null: no disk
  States states_;
};

}  // namespace sx::server
