// The tokens of a vocabulary by their bytes, as a trie in the order of a depth-first walk, so that a grammar looks at a
// common beginning of many tokens once. Shared by all grammars of a vocabulary; const after it is made.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/token.h"

namespace sx {

class TokenCodec;

class TokenTrie {
 public:
  struct Node {
    uint8_t byte;
    uint16_t depth;   // of the first level: 0
    uint32_t after;   // the first node that is not below this one
    uint32_t tokens;  // of this node: [tokens, tokens of the node behind it) of order()
  };

  // `bytes`: of each token; empty: never text. `ends`: tokens that end a text, whatever their bytes; there must be one.
  // `vocab`: length of the model's logits, at least bytes.size(). `encode`: tokens a text is likely to be spelled with;
  // may be empty. `control`: the texts of control tokens, which a grammar can name; such a token's bytes here are its
  // text between two of kControlByte.
  using Encode = std::function<std::vector<Token>(std::string_view)>;
  using Control = std::vector<std::pair<Token, std::string>>;
  TokenTrie(std::span<const std::string> bytes, std::span<const Token> ends, int vocab, Encode encode = {},
            const Control& control = {});
  // The tokenizer must outlive it.
  TokenTrie(const TokenCodec& tokenizer, int vocab);

  int vocab() const { return vocab_; }
  size_t words() const { return (size_t(vocab_) + 31) / 32; }  // of a mask
  std::span<const Node> nodes() const { return {nodes_.data(), nodes_.size() - 1}; }
  // Tokens whose bytes are those on the way to a node.
  std::span<const Token> tokens_at(size_t node) const {
    return {order_.data() + nodes_[node].tokens, nodes_[node + 1].tokens - nodes_[node].tokens};
  }
  int depth() const { return depth_; }           // bytes of the longest token
  std::string_view bytes_of(Token token) const;  // empty for tokens that are never text
  bool is_end(Token token) const;
  size_t control_at(std::string_view text) const;  // length of the longest control token's text it begins with, or 0
  std::span<const Token> ends() const { return ends_; }
  // Tokens that spell `text`, as the tokenizer would write it; shorter where it cannot be spelled. `text` may have
  // control tokens in it, as their bytes.
  std::vector<Token> spell(std::string_view text) const;

 private:
  void build(const Control& control);
  bool spell_plain(std::string_view text, std::vector<Token>& out) const;
  Token longest(std::string_view text) const;

  int vocab_, depth_ = 0;
  std::vector<std::string> bytes_;
  std::vector<Token> ends_, order_;
  std::vector<std::string> control_;  // texts of control tokens, ascending
  size_t longest_control_ = 0;
  std::vector<Node> nodes_;  // the last one is a stop
  Encode encode_;
};

}  // namespace sx
