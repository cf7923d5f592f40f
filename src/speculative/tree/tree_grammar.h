// A grammar along a text and the trees drafted after it: which tokens may follow the text, or a node of a tree. The
// text is that of the answer; node 0 of a tree, its last token, has been accepted already.
//
// A grammar may turn out too ambiguous to be followed. That ends a request only on the accepted path. A
// drafter that meets it is told to draft nothing there.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "speculative/tree/tree.h"
#include "text/grammar/matcher.h"

namespace sx {

class TreeGrammar {
 public:
  // `cancelled`: whether the request has been cancelled; asked in the middle of long work. May be empty.
  // `helper`: makes masks that take long, see ready(); null: nobody does.
  explicit TreeGrammar(std::shared_ptr<GrammarMatcher> matcher, std::function<bool()> cancelled = {},
                       Background* helper = nullptr);
  ~TreeGrammar();
  TreeGrammar(const TreeGrammar&) = delete;
  TreeGrammar& operator=(const TreeGrammar&) = delete;

  // Whether the text may take part in a round that others wait for: the mask of its end is there, or can be made before
  // `until` (of now_ms()). Otherwise the helper makes it. While the matcher is lent(), to make this mask or that of
  // another text of the same grammar, nothing else here may be called but take_back().
  bool ready(double until);
  bool lent() const { return matcher_->lent(); }
  void take_back() { matcher_->take_back(); }
  // Masks of this grammar may take long, so that drafts are not worth theirs.
  bool slow() const { return matcher_->slow(); }

  // The text grows by a token. False: the grammar does not allow it (or the text has ended); only the end is left then.
  bool accept(Token token);
  // Nothing but the end may follow, or it has been accepted.
  bool done() const;

  // A new round: masks handed out before are let go, and so are their failures.
  void begin();
  // Tokens that may follow a node: [(vocab + 31) / 32] bits, at least one of them set. They stay until begin(). Behind
  // nodes that the grammar forbids or that end the text: the end tokens. So too where the grammar cannot be followed,
  // which failure() tells.
  const uint32_t* mask(const TokenTree& tree, NodeId node);
  struct Failure {
    NodeId node;
    std::string why;  // empty: the request has been cancelled
    bool no_memory = false;
  };
  // Why the last mask() of a node in this round is not the grammar's; null: it is. A text that goes on behind the node
  // has to end with this.
  const Failure* failure(NodeId node) const;
  static bool allows(const uint32_t* mask, Token token) { return mask[size_t(token) / 32] >> (token % 32) & 1; }

  // For drafters: as mask(), but null where nothing should be drafted after the node, because the grammar cannot be
  // followed there or because the round's work is spent.
  const uint32_t* draft_mask(const TokenTree& tree, NodeId node);
  // Drops the nodes that the grammar forbids, and those it cannot be followed to, with what is below them.
  void prune(TokenTree& tree);
  // Tokens that spell what must follow the text, at most `most`; none where it can go on in more than one way.
  std::vector<Token> forced_tokens(size_t most);
  // Whether nodes beyond the next token may still be looked at in this round: others wait for it. All drafts of a round
  // together may take a part of what one mask may, beside the mask that the text needs anyhow.
  bool allows_drafts() const { return spent_ - own_ < std::min(matcher_->limits().work, kDraftWork); }
  uint64_t spent() const { return spent_; }

 private:
  static constexpr uint64_t kDraftWork = 1 << 18;

  GrammarMatcher::State state_at(const TokenTree& tree, NodeId node);
  const uint32_t* hold(const GrammarMatcher::State& state);

  std::shared_ptr<GrammarMatcher> matcher_;
  std::function<bool()> cancelled_;
  Background* const helper_;
  GrammarMatcher::State state_;  // after the text; empty: it has ended
  struct Held {
    GrammarMatcher::State state;
    GrammarMask mask;
  };
  std::vector<Held> held_;
  std::vector<Failure> failures_;
  uint64_t spent_ = 0, own_ = 0;               // work of this round; of it, of the mask of the text's end
  std::vector<Token> path_;                    // working memory: tokens from a node up to node 0
  std::vector<GrammarMatcher::State> states_;  // working memory: of the nodes of a tree
  std::vector<NodeId> kept_;
};

}  // namespace sx
