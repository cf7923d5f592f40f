// Finds added tokens (control tokens such as <|im_start|>, and user-defined ones) in raw text, before normalisation.
// The leftmost is found first, and the longest of those that start at the same place.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "text/byte_trie.h"
#include "text/regex.h"

namespace sx {

struct AddedToken {
  std::string text;
  Token token = kNoToken;
  bool control = false;                          // found only if the caller asks to parse control tokens
  bool single_word = false;                      // not found inside a word
  bool left_strip = false, right_strip = false;  // includes the white space on that side
  bool normalized = false;                       // searched in the normalised text
};

class AddedTokens {
 public:
  struct Part {
    std::string_view text;  // a stretch of the input, or what an added token covers
    Token token;            // kNoToken: ordinary text
  };
  void add(AddedToken token);
  bool empty() const { return tokens_.empty(); }
  std::vector<Part> split(std::string_view text, bool parse_control, RegexScratch& scratch) const;

 private:
  // Returns the index of the longest token that starts at text[at], or -1.
  int longest_at(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;
  ByteTrie trie_;  // values index tokens_
};

}  // namespace sx
