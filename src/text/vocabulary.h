// The table of tokens (text as the file writes it, bytes, type) and the interface of the three models that turn a word
// into tokens: BPE, SentencePiece's scored BPE, Unigram.
#pragma once
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/token.h"
#include "formats/tokenizer_data.h"

namespace sx {

struct TokenTable {
  std::vector<std::string> text;         // [tokens] as written in the file
  std::vector<std::string> bytes;        // [tokens] what decoding prints
  std::vector<std::string> first_bytes;  // [tokens] the same for the first token of a text; empty: no difference
  std::vector<TokenType> type;           // [tokens]
  std::unordered_map<std::string_view, Token> ids;  // views into text

  int size() const { return static_cast<int>(text.size()); }
  bool contains(Token token) const { return token >= 0 && token < size(); }
  bool is_control(Token token) const {
    return contains(token) && (type[token] == TokenType::kControl || type[token] == TokenType::kUnknown);
  }
  Token find(std::string_view token_text) const {
    const auto found = ids.find(token_text);
    return found == ids.end() ? kNoToken : found->second;
  }
  // Builds `ids` once `text` is complete. The last of equal texts counts.
  void index();
};

// Reads <0x00> .. <0xFF> as a number; -1 for anything else, including other spellings such as <0x0a> or <0xA>.
int parse_byte_token(std::string_view text);

// Working memory of one call of encode, so that the models stay const and shareable between threads.
struct WordScratch {
  struct Symbol {
    Token token;
    int previous, next;      // indices; -1 at the ends
    uint32_t begin, length;  // bytes of the word
  };
  struct Candidate {
    float score;  // SentencePiece; BPE uses rank
    uint32_t rank;
    int left;
    Token left_token, right_token;
    uint32_t length;
  };
  struct Link {
    int previous, next;  // indices; -1 at the ends
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  std::vector<Token> tokens;
  std::vector<uint32_t> ranks;
  std::vector<Link> links;
  std::vector<std::vector<int>> places;  // [merges] left sides of pairs, by rank
};

class WordModel {
 public:
  virtual ~WordModel() = default;
  // Appends the tokens of one word. Byte-level models take any bytes, the others valid UTF-8.
  virtual void encode(std::string_view word, WordScratch& scratch, std::vector<Token>& out) const = 0;
};

}  // namespace sx
