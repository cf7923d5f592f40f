#include "speculative/draft/text_store.h"

#include <algorithm>
#include <utility>

namespace sx {

TextStore::TextStore(int tokens, std::span<const Token> fixed) {
  if (tokens > 0)
    young_ = std::make_unique<SuffixAutomaton>(tokens + 1), old_ = std::make_unique<SuffixAutomaton>(tokens + 1);
  if (fixed.empty()) return;
  fixed_ = std::make_unique<SuffixAutomaton>(static_cast<int>(fixed.size()));
  for (const Token token : fixed) fixed_->append(token);
}

void TextStore::add(std::span<const Token> text) {
  if (!young_ || text.empty()) return;
  text = text.last(std::min(text.size(), static_cast<size_t>(young_->capacity()) - 1));
  if (young_->capacity() - young_->size() < static_cast<int>(text.size()) + 1) {
    std::swap(young_, old_);
    young_->clear();
  }
  for (const Token token : text) young_->append(token);
  young_->append(kEnd);
}

std::array<TextStore::Match, 3> TextStore::find(std::span<const Token> text, int most) const {
  const auto end = text.last(std::min(text.size(), static_cast<size_t>(most)));
  const auto find_in = [&](const SuffixAutomaton* automaton) -> Match {
    SuffixAutomaton::State state = SuffixAutomaton::kRoot;
    int length = 0;
    for (const Token token : end) {
      if (!automaton) break;
      SuffixAutomaton::State next = automaton->next(state, token);
      while (next == SuffixAutomaton::kNoState && state != SuffixAutomaton::kRoot) {
        state = automaton->link(state);
        length = automaton->length(state);
        next = automaton->next(state, token);
      }
      if (next != SuffixAutomaton::kNoState) state = next, ++length;
    }
    return {automaton, state, length};
  };
  return {find_in(young_.get()), find_in(old_.get()), find_in(fixed_.get())};
}

}  // namespace sx
