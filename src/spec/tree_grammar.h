// A grammar along a text and the trees drafted after it: which tokens may follow the text, or a node of a tree. The text is that of the
// answer; node 0 of a tree, its last token, has been accepted already.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "spec/tree.h"
#include "text/grammar/matcher.h"

namespace sx {

class TreeGrammar {
 public:
  explicit TreeGrammar(std::shared_ptr<GrammarMatcher> matcher);

  // The text grows by a token. False: the grammar does not allow it (or the text has ended); only the end is left then.
  bool accept(Token token);
  // Nothing but the end may follow, or it has been accepted.
  bool done() const;

  // Why the grammar cannot be followed any further (it is too ambiguous); empty: it can. Only the end is left then.
  const std::string& error() const { return error_; }

  // A new round: masks handed out before are let go.
  void begin() { held_.clear(); }
  // Tokens that may follow a node: [(vocab + 31) / 32] bits, at least one of them set. They stay until begin() or accept(). Behind nodes
  // that the grammar forbids or that end the text: the end tokens.
  const uint32_t* mask(const TokenTree& tree, NodeId node);
  static bool allows(const uint32_t* mask, Token token) { return mask[size_t(token) / 32] >> (token % 32) & 1; }
  // Drops the nodes that the grammar forbids, with what is below them.
  void prune(TokenTree& tree);
  // Tokens that spell what must follow the text, at most `most`; none where it can go on in more than one way.
  std::vector<Token> forced_tokens(size_t most);

 private:
  template <class Work, class Result> Result guarded(Work work, Result otherwise);
  GrammarMatcher::State state_at(const TokenTree& tree, NodeId node);

  std::shared_ptr<GrammarMatcher> matcher_;
  GrammarMatcher::State state_;                 // after the text; empty: it has ended
  std::string error_;
  std::vector<GrammarMask> held_;
  std::vector<Token> path_;                     // working memory: tokens from a node up to node 0
  std::vector<GrammarMatcher::State> states_;   // working memory: of the nodes of a tree
  std::vector<NodeId> kept_;
};

}  // namespace sx
