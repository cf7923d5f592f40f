#include "text/grammar/token_trie.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "text/grammar/program.h"
#include "text/tokenizer.h"

namespace sx {

TokenTrie::TokenTrie(std::span<const std::string> bytes, std::span<const Token> ends, int vocab, Encode encode,
                     const Control& control)
    : vocab_(vocab), bytes_(bytes.begin(), bytes.end()), ends_(ends.begin(), ends.end()), encode_(std::move(encode)) {
  build(control);
}

TokenTrie::TokenTrie(const TokenCodec& tokenizer, int vocab) : vocab_(vocab) {
  bytes_.resize(size_t(std::min(vocab, tokenizer.size())));
  Control control;
  for (size_t t = 0; t < bytes_.size(); ++t) {
    bytes_[t] = tokenizer.bytes_of(Token(t));
    const Token token = Token(t);
    if (tokenizer.is_end(token)) ends_.push_back(token);
    else if (tokenizer.is_control(token))
      control.emplace_back(token, tokenizer.decode({&token, 1}, false, TextPlace::kBehind));
  }
  encode_ = [&tokenizer](std::string_view text) { return tokenizer.encode(text, false, false); };
  build(control);
}

void TokenTrie::build(const Control& control) {
  SX_ASSERT(bytes_.size() <= size_t(vocab_));
  if (ends_.empty()) fail("grammar: the vocabulary has no token that ends a text");
  std::sort(ends_.begin(), ends_.end());
  for (Token end : ends_) {
    SX_ASSERT(end >= 0 && end < vocab_);
    if (size_t(end) < bytes_.size()) bytes_[size_t(end)].clear();
  }
  // No text of a grammar has the byte that marks control tokens in it, so a token with this byte is never text.
  for (std::string& bytes : bytes_)
    if (bytes.find(kControlByte) != std::string::npos) bytes.clear();
  for (const auto& [token, text] : control) {
    SX_ASSERT(token >= 0 && size_t(token) < bytes_.size() && !is_end(token));
    if (text.empty()) continue;
    bytes_[size_t(token)] = kControlByte + text + kControlByte;
    control_.push_back(text);
    longest_control_ = std::max(longest_control_, text.size());
  }
  std::sort(control_.begin(), control_.end());
  for (size_t t = 0; t < bytes_.size(); ++t) {
    if (bytes_[t].size() > std::numeric_limits<uint16_t>::max()) bytes_[t].clear();  // no such vocabulary is known
    if (!bytes_[t].empty()) order_.push_back(Token(t));
  }
  std::sort(order_.begin(), order_.end(), [&](Token a, Token b) {
    const int order = bytes_[size_t(a)].compare(bytes_[size_t(b)]);
    return order != 0 ? order < 0 : a < b;
  });
  std::vector<uint32_t> open;  // nodes on the way to the last token
  std::string_view last;
  const auto close = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back()) nodes_[open.back()].after = uint32_t(nodes_.size());
  };
  for (size_t i = 0; i < order_.size(); ++i) {
    const std::string_view text = bytes_[size_t(order_[i])];
    depth_ = std::max(depth_, int(text.size()));
    size_t same = 0;
    while (same < last.size() && same < text.size() && last[same] == text[same]) ++same;
    close(same);
    // Nodes on the way have no tokens of their own: theirs begin where those of the node below begin.
    for (size_t d = same; d < text.size(); ++d) {
      open.push_back(uint32_t(nodes_.size()));
      nodes_.push_back({uint8_t(text[d]), uint16_t(d), 0, uint32_t(i)});
    }
    last = text;
  }
  close(0);
  nodes_.push_back({0, 0, 0, uint32_t(order_.size())});
}

std::string_view TokenTrie::bytes_of(Token token) const {
  return token >= 0 && size_t(token) < bytes_.size() ? std::string_view(bytes_[size_t(token)]) : std::string_view();
}

bool TokenTrie::is_end(Token token) const { return std::binary_search(ends_.begin(), ends_.end(), token); }

size_t TokenTrie::control_at(std::string_view text) const {
  for (size_t length = std::min(text.size(), longest_control_); length > 0; --length)
    if (std::binary_search(control_.begin(), control_.end(), text.substr(0, length), std::less<>())) return length;
  return 0;
}

// The longest token `text` begins with.
Token TokenTrie::longest(std::string_view text) const {
  Token best = kNoToken;
  size_t depth = 0;
  for (size_t i = 0; i + 1 < nodes_.size() && depth < text.size();) {
    if (nodes_[i].depth < depth) break;  // all children have been looked at
    if (nodes_[i].byte != uint8_t(text[depth])) {
      i = nodes_[i].after;
      continue;
    }
    if (const auto here = tokens_at(i); !here.empty()) best = here[0];
    ++depth, ++i;
  }
  return best;
}

std::vector<Token> TokenTrie::spell(std::string_view text) const {
  std::vector<Token> tokens;
  while (!text.empty()) {
    const size_t begin = std::min(text.size(), text.find(kControlByte));
    if (!spell_plain(text.substr(0, begin), tokens) || begin == text.size()) break;
    text.remove_prefix(begin);
    const Token control = longest(text);
    if (control == kNoToken) break;
    tokens.push_back(control);
    text.remove_prefix(bytes_of(control).size());
  }
  return tokens;
}

// Appends the tokens of a text without control tokens; false: they spell only its beginning.
bool TokenTrie::spell_plain(std::string_view text, std::vector<Token>& out) const {
  if (encode_ && !text.empty()) {
    const std::vector<Token> tokens = encode_(text);
    std::string_view rest = text;
    for (Token t : tokens) {
      const std::string_view bytes = bytes_of(t);
      if (bytes.empty() || !rest.starts_with(bytes)) break;
      rest.remove_prefix(bytes.size());
    }
    if (rest.empty()) {  // some tokenizers put a space in front
      out.insert(out.end(), tokens.begin(), tokens.end());
      return true;
    }
  }
  while (!text.empty()) {
    const Token t = longest(text);
    if (t == kNoToken) return false;
    out.push_back(t);
    text.remove_prefix(bytes_of(t).size());
  }
  return true;
}

}  // namespace sx
