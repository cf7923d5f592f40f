// Small vocabularies and questions for the tests of grammars.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/matcher.h"

namespace sx {

inline bool allows(const GrammarMask& mask, Token token) { return (*mask)[size_t(token) / 32] >> (token % 32) & 1; }

// Tokens 0..255 are the single bytes, then `more`, then an end and a control token.
struct TestVocabulary {
  std::vector<std::string> bytes;
  Token end, control;
  std::shared_ptr<const TokenTrie> trie;

  explicit TestVocabulary(std::vector<std::string> more = {}) {
    for (int b = 0; b < 256; ++b) bytes.emplace_back(1, char(b));
    bytes.insert(bytes.end(), more.begin(), more.end());
    end = Token(bytes.size());
    bytes.emplace_back("</s>");  // its bytes are not text
    control = Token(bytes.size());
    bytes.emplace_back();
    trie = std::make_shared<const TokenTrie>(bytes, std::span(&end, 1),
                                             int(bytes.size()) + 5);  // rows beyond the vocabulary
  }
};

inline bool matches(GrammarMatcher& matcher, std::string_view text) {
  return matcher.can_end(matcher.advance(matcher.start(), text));
}

}  // namespace sx
