// Byte pair encoding: a word's symbols are merged pair by pair, lowest rank first, leftmost first among equals. The
// symbols are bytes (GPT-2, Llama 3, Qwen, SmolLM) or characters (Llama 2 and Mistral as tokenizer.json writes them).
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "text/vocabulary.h"

namespace sx {

struct BpeOptions {
  bool byte_level = true;
  bool ignore_merges = false;  // a word that is a token is that token, whatever the merges say
  bool byte_fallback = false;  // characters without a token become <0xNN> tokens
  bool fuse_unk = false;       // neighbouring unknown characters become one unk
  Token unk = kNoToken;        // for characters without a token; none: they are dropped
  std::string continuing_prefix, end_suffix;
};

class Bpe : public WordModel {
 public:
  struct Merge {
    Token left, right, result;  // in order of rank
  };
  // lookup: which text is which token for the model's own purposes (it need not hold the added tokens). Its lifetime
  // must exceed this object's.
  Bpe(const std::unordered_map<std::string_view, Token>& lookup, const std::vector<Merge>& merges, BpeOptions options);
  void encode(std::string_view word, WordScratch& scratch, std::vector<Token>& out) const override;

 private:
  struct Slot {
    uint64_t key;  // left << 32 | right
    uint32_t rank;
    Token result;
  };
  const Slot* find(Token left, Token right) const;
  Token lookup(std::string_view text) const;
  void first_symbols(std::string_view word, std::vector<Token>& tokens) const;
  void merge_short(WordScratch& scratch, std::vector<Token>& out) const;
  void merge_long(WordScratch& scratch, std::vector<Token>& out) const;
  void merge_huge(WordScratch& scratch, std::vector<Token>& out) const;

  const std::unordered_map<std::string_view, Token>& lookup_;
  BpeOptions options_;
  size_t longest_ = 0;                 // bytes of the longest text in lookup
  std::vector<Slot> slots_;            // open addressing, a power of two
  size_t ranks_ = 0;                   // merges
  bool ordered_ = true;                // no merge comes before one that makes a part of it
  bool plain_bytes_ = false;           // bytes are spelled as just their character
  std::array<Token, 256> byte_token_;  // byte-level: the token of each byte; otherwise of <0xNN>
};

}  // namespace sx
