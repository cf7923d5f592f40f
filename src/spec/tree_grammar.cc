#include "spec/tree_grammar.h"

#include "base/error.h"

namespace sx {
namespace {

constexpr size_t kBytesPerToken = 16;  // looked at when forced tokens are wanted; most are shorter

}  // namespace

TreeGrammar::TreeGrammar(std::shared_ptr<GrammarMatcher> matcher) : matcher_(std::move(matcher)), state_(matcher_->start()) {}

// One request's grammar must not end the others' round, so errors are kept for whoever asks.
template <class Work, class Result>
Result TreeGrammar::guarded(Work work, Result otherwise) {
  try {
    return work();
  } catch (const Error& e) {
    if (error_.empty()) error_ = e.what();
    return otherwise;
  }
}

bool TreeGrammar::accept(Token token) {
  begin();
  const bool ends = matcher_->trie().is_end(token) && matcher_->can_end(state_);
  state_ = guarded([&] { return matcher_->advance(state_, token); }, GrammarMatcher::State());
  return ends || state_;
}

bool TreeGrammar::done() const { return !state_ || matcher_->must_end(state_); }

// A state met before costs a look-up per byte, so nothing is remembered by node, and a tree may change as it likes.
GrammarMatcher::State TreeGrammar::state_at(const TokenTree& tree, NodeId node) {
  path_.clear();
  for (; node != 0; node = tree.parent(node)) path_.push_back(tree.token(node));
  GrammarMatcher::State state = state_;
  while (state && !path_.empty()) {
    state = matcher_->advance(state, path_.back());
    path_.pop_back();
  }
  return state;
}

const uint32_t* TreeGrammar::mask(const TokenTree& tree, NodeId node) {
  SX_ASSERT(node >= 0 && node < tree.size());
  held_.push_back(guarded([&] { return matcher_->mask(state_at(tree, node)); }, matcher_->ends_only()));
  return held_.back()->data();
}

void TreeGrammar::prune(TokenTree& tree) {
  states_.assign(size_t(tree.size()), {});
  states_[0] = state_;
  kept_.assign(1, 0);
  for (NodeId n = 1; n < tree.size(); ++n) {
    const GrammarMatcher::State& above = states_[size_t(tree.parent(n))];
    const Token token = tree.token(n);
    states_[size_t(n)] = guarded([&] { return matcher_->advance(above, token); }, GrammarMatcher::State());
    if (states_[size_t(n)] || (matcher_->can_end(above) && matcher_->trie().is_end(token))) kept_.push_back(n);
  }
  if (int(kept_.size()) < tree.size()) tree.keep(kept_);
  states_.clear();
}

std::vector<Token> TreeGrammar::forced_tokens(size_t most) {
  const std::string bytes = guarded([&] { return matcher_->forced(state_, most * kBytesPerToken); }, std::string());
  if (bytes.empty()) return {};
  std::vector<Token> tokens = matcher_->trie().spell(bytes);
  if (tokens.size() > most) tokens.resize(most);
  return tokens;
}

}  // namespace sx
