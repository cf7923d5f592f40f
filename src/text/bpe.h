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
  bool ignore_merges = false;  // A word that is itself a token is encoded as that token without merging.
  bool byte_fallback = false;  // Characters without a token become <0xNN> tokens.
  bool fuse_unk = false;       // Neighbouring unknown characters become one unk token.
  Token unk = kNoToken;        // It stands for characters without a token; kNoToken drops them.
  std::string continuing_prefix, end_suffix;
};

class Bpe : public WordModel {
 public:
  struct Merge {
    Token left, right, result;  // in order of rank
  };
  // `lookup` maps text to token for merging; it need not hold the added tokens and must outlive this object.
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
  bool ordered_ = true;                // every merge ranks after the merges that make its two sides
  bool plain_bytes_ = false;           // the token of a byte is spelled as the byte's character alone
  std::array<Token, 256> byte_token_;  // the token of each byte if byte-level, otherwise of <0xNN>
};

}  // namespace sx
