#include "server/state_cache.h"

#include <algorithm>
#include <istream>
#include <iterator>
#include <sstream>
#include <streambuf>

namespace sx::server {
namespace {

// Reads from memory that stays where it is.
class MemoryReader : public std::streambuf {
 public:
  explicit MemoryReader(const std::string& from) {
    char* begin = const_cast<char*>(from.data());  // never written: there is no put area
    setg(begin, begin, begin + from.size());
  }
};

}  // namespace

size_t common_prefix(std::span<const Token> a, std::span<const Token> b) {
  return size_t(std::ranges::mismatch(a, b).in1 - a.begin());
}

size_t StateCache::longest(std::span<const Token> text) const {
  size_t most = 0;
  for (const State& state : states_) most = std::max(most, common_prefix(state.text, text));
  return most;
}

void StateCache::drop(States::iterator state) {
  bytes_ -= state->blob.size();
  states_.erase(state);
}

void StateCache::save(const Session& session) {
  const std::span<const Token> text = session.text();
  if (text.empty() || longest(text) == text.size() || session.save_bytes() > most_) return;
  std::ostringstream out;
  session.save(out);
  State state{{text.begin(), text.end()}, std::move(out).str()};
  if (state.blob.size() > most_) return;
  for (auto it = states_.begin(); it != states_.end();) {
    const auto next = std::next(it);
    if (common_prefix(it->text, text) == it->text.size()) drop(it);
    it = next;
  }
  bytes_ += state.blob.size();
  states_.push_front(std::move(state));
  while (bytes_ > most_) drop(std::prev(states_.end()));
}

bool StateCache::restore(std::span<const Token> text, Session& session) {
  const auto best = std::ranges::max_element(states_, {}, [&](const State& state) { return common_prefix(state.text, text); });
  if (best == states_.end()) return false;
  MemoryReader reader(best->blob);
  std::istream in(&reader);
  try {
    session.restore(in);
  } catch (const Error&) {
    drop(best);
    return false;
  }
  states_.splice(states_.begin(), states_, best);
  return true;
}

}  // namespace sx::server
