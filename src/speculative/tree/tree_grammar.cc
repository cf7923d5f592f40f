#include "speculative/tree/tree_grammar.h"

#include <algorithm>
#include <new>

#include "base/clock.h"
#include "base/error.h"

namespace sx {
namespace {

constexpr size_t kBytesPerToken = 16;  // looked at when forced tokens are wanted; most are shorter

// What a drafter asks for, or `otherwise` where the grammar cannot be followed: the draft ends there, the request does
// not.
template <class Work, class Result>
Result drafted(Work work, Result otherwise) {
  try {
    return work();
  } catch (const Error&) {
  } catch (const GrammarCancelled&) {
  } catch (const std::bad_alloc&) {}
  return otherwise;
}

}  // namespace

// The matcher may be lent for another text, which nobody waits for here: a state may be copied and let go all the same.
TreeGrammar::TreeGrammar(std::shared_ptr<GrammarMatcher> matcher, std::function<bool()> cancelled, Background* helper)
    : matcher_(std::move(matcher)), cancelled_(std::move(cancelled)), helper_(helper), state_(matcher_->start()) {
  if (!helper_) matcher_->take_back();
}

TreeGrammar::~TreeGrammar() { matcher_->give_up(state_); }

bool TreeGrammar::ready(double until) {
  if (!helper_) return true;
  if (matcher_->lent()) return false;
  matcher_->forget_when_lent();
  if (matcher_->failed(state_)) return true;
  if (!matcher_->crowded()) {
    if (matcher_->has_mask(state_)) return true;
    try {
      if (now_ms() < until) matcher_->mask(state_, [until] { return now_ms() >= until; });
    } catch (const Error&) {  // it is told again where the mask is needed
    } catch (const GrammarCancelled&) {
    } catch (const std::bad_alloc&) {}
    if (matcher_->has_mask(state_)) return true;
  }
  matcher_->lend(state_, *helper_);
  return false;
}

void TreeGrammar::begin() {
  held_.clear();
  failures_.clear();
  spent_ = own_ = 0;
}

// A token the mask has allowed can be followed: the mask has done so.
bool TreeGrammar::accept(Token token) {
  const bool ends = matcher_->trie().is_end(token) && matcher_->can_end(state_);
  state_ = matcher_->advance(state_, token);
  return ends || state_;
}

bool TreeGrammar::done() const { return !state_ || matcher_->must_end(state_); }

// A state met before costs a look-up per byte, so nothing is remembered by node, and a tree may change as it likes.
GrammarMatcher::State TreeGrammar::state_at(const TokenTree& tree, NodeId node) {
  SX_ASSERT(node >= 0 && node < tree.size());
  path_.clear();
  for (; node != 0; node = tree.parent(node)) path_.push_back(tree.token(node));
  GrammarMatcher::State state = state_;
  while (state && !path_.empty()) {
    state = matcher_->advance(state, path_.back());
    path_.pop_back();
  }
  return state;
}

// A state's work counts once in a round.
const uint32_t* TreeGrammar::hold(const GrammarMatcher::State& state) {
  const auto known = std::find_if(held_.begin(), held_.end(), [&](const Held& h) { return h.state == state; });
  if (known != held_.end()) return known->mask->data();
  try {
    held_.push_back({state, matcher_->mask(state, cancelled_)});
  } catch (...) {
    spent_ += matcher_->work();
    throw;
  }
  spent_ += matcher_->work();
  if (state == state_) own_ = matcher_->work();
  return held_.back().mask->data();
}

const uint32_t* TreeGrammar::mask(const TokenTree& tree, NodeId node) {
  std::erase_if(failures_, [&](const Failure& f) { return f.node == node; });
  try {
    return hold(state_at(tree, node));
  } catch (const Error& e) { failures_.push_back({node, e.what()}); } catch (const GrammarCancelled&) {
    failures_.push_back({node, ""});
  } catch (const std::bad_alloc&) {
    failures_.push_back({node, "there is no memory to find which tokens the grammar lets come next", true});
  }
  held_.push_back({{}, matcher_->ends_only()});
  return held_.back().mask->data();
}

const TreeGrammar::Failure* TreeGrammar::failure(NodeId node) const {
  const auto found = std::find_if(failures_.begin(), failures_.end(), [&](const Failure& f) { return f.node == node; });
  return found == failures_.end() ? nullptr : &*found;
}

const uint32_t* TreeGrammar::draft_mask(const TokenTree& tree, NodeId node) {
  if (!allows_drafts()) return nullptr;
  return drafted([&] { return hold(state_at(tree, node)); }, static_cast<const uint32_t*>(nullptr));
}

void TreeGrammar::prune(TokenTree& tree) {
  states_.assign(size_t(tree.size()), {});
  states_[0] = state_;
  kept_.assign(1, 0);
  for (NodeId n = 1; n < tree.size() && allows_drafts(); ++n) {
    const GrammarMatcher::State& above = states_[size_t(tree.parent(n))];
    if (!above) continue;
    const Token token = tree.token(n);
    states_[size_t(n)] = drafted([&] { return matcher_->advance(above, token); }, GrammarMatcher::State());
    spent_ += matcher_->work();
    if (states_[size_t(n)] || (matcher_->can_end(above) && matcher_->trie().is_end(token))) kept_.push_back(n);
  }
  if (int(kept_.size()) < tree.size()) tree.keep(kept_);
  states_.clear();
}

std::vector<Token> TreeGrammar::forced_tokens(size_t most) {
  const std::string bytes = matcher_->forced(state_, most * kBytesPerToken);
  spent_ += matcher_->work();
  if (bytes.empty()) return {};
  std::vector<Token> tokens = matcher_->trie().spell(bytes);
  if (tokens.size() > most) tokens.resize(most);
  return tokens;
}

}  // namespace sx
