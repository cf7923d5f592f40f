#include "server/state_cache.h"

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

void StateCache::drop(States::iterator state) {
  bytes_ -= state->blob->size();
  states_.erase(state);
}

void StateCache::save(uint64_t scope, const Session& session, Turns* turns) {
  const std::span<const Token> text = session.text();
  if (text.empty() || longest(scope, text) == text.size() || session.save_bytes() > most_) return;
  StateWriter out(session.save_bytes(), turns);
  session.save(out.stream());
  State state{scope, {text.begin(), text.end()}, std::make_shared<const std::string>(out.take())};
  if (state.blob->size() > most_) return;
  for (auto it = states_.begin(); it != states_.end();) {
    const auto next = std::next(it);
    if (it->scope == scope && common_prefix(it->text, text) == it->text.size()) drop(it);
    it = next;
  }
  bytes_ += state.blob->size();
  states_.push_front(std::move(state));
  while (bytes_ > most_) drop(std::prev(states_.end()));
}

bool StateCache::restore(uint64_t scope, std::span<const Token> text, Session& session, Turns* turns) {
  const auto held = [&](const State& state) { return state.scope == scope ? common_prefix(state.text, text) : 0; };
  const auto best = std::ranges::max_element(states_, {}, held);
  if (best == states_.end() || held(*best) == 0) return false;
  states_.splice(states_.begin(), states_, best);
  const auto blob = best->blob;
  StateReader in(*blob, turns);
  try {
    session.restore(in.stream());
    return true;
  } catch (const Error&) {
    const auto broken = std::ranges::find(states_, blob, &State::blob);  // may be gone by now
    if (broken != states_.end()) drop(broken);
    return false;
  }
}

}  // namespace sx::server
