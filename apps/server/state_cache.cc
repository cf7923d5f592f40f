#include "server/state_cache.h"

#include <specextend/no_memory.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace sx::server {

size_t common_prefix(std::span<const Token> a, std::span<const Token> b) {
  return size_t(std::ranges::mismatch(a, b).in1 - a.begin());
}

size_t StateCache::longest(uint64_t scope, std::span<const Token> text) const {
  size_t most = 0;
  for (const State& state : states_)
    if (state.scope == scope) most = std::max(most, common_prefix(state.text, text));
  return most;
}

StateCache::StateCache(size_t most_bytes, size_t disk, const std::string& folder)
    : most_(most_bytes), most_disk_(disk) {
  if (disk > 0) spill_ = std::make_unique<StateSpill>(folder, most_bytes);
}

void StateCache::drop(States::iterator state) {
  (state->blob ? bytes_ : disk_bytes_) -= state->bytes;
  states_.erase(state);
}

// The last ones of those in memory go to the disk, the last ones there go altogether.
void StateCache::make_room() {
  for (auto it = states_.end(); bytes_ > most_ && it != states_.begin();) {
    --it;
    if (!it->blob) continue;
    const auto next = std::next(it);
    if (spill_ && it->bytes <= most_disk_) it->file = spill_->write(it->blob);
    if (!it->file) {
      drop(it);
      it = next;
      continue;
    }
    it->blob = nullptr;
    bytes_ -= it->bytes, disk_bytes_ += it->bytes;
  }
  for (auto it = states_.end(); disk_bytes_ > most_disk_ && it != states_.begin();) {
    --it;
    if (it->blob) continue;
    const auto next = std::next(it);
    drop(it);
    it = next;
  }
}

void StateCache::save(uint64_t scope, const Session& session, Turns* turns) {
  const std::span<const Token> text = session.text();
  if (text.empty() || longest(scope, text) == text.size() || session.save_bytes() > most_) return;
  StateWriter out(session.save_bytes(), turns);
  session.save(out.stream());
  const auto blob = std::make_shared<const std::string>(out.take());
  State state{.scope = scope, .text = {text.begin(), text.end()}, .bytes = blob->size(), .blob = blob};
  if (state.bytes > most_) return;
  for (auto it = states_.begin(); it != states_.end();) {
    const auto next = std::next(it);
    if (it->scope == scope && common_prefix(it->text, text) == it->text.size()) drop(it);
    it = next;
  }
  bytes_ += state.bytes;
  states_.push_front(std::move(state));
  make_room();
}

bool StateCache::restore(uint64_t scope, std::span<const Token> text, Session& session, Turns* turns) {
  const auto held = [&](const State& state) { return state.scope == scope ? common_prefix(state.text, text) : 0; };
  const auto best = std::ranges::max_element(states_, {}, held);
  if (best == states_.end() || held(*best) == 0) return false;
  states_.splice(states_.begin(), states_, best);
  const auto blob = best->blob;
  const auto file = best->file;
  const auto bytes = blob ? blob : spill_->read(file, turns);
  try {
    if (!bytes) throw Error("the disk has lost a state");
    StateReader in(*bytes, turns);
    session.restore(in.stream());
    return true;
  } catch (const NoMemory&) {  // the state is as good as before
    return false;
  } catch (const Error&) {
    const auto broken = std::ranges::find_if(states_, [&](const State& state) {  // may be gone by now
      return file ? state.file == file : state.blob == blob;
    });
    if (broken != states_.end()) drop(broken);
    return false;
  }
}

}  // namespace sx::server
