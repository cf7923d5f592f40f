// Unigram cuts a word into the tokens with the largest sum of scores (Viterbi). Stretches that no token covers become
// the unknown token, or byte tokens.
#pragma once
#include <array>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/byte_trie.h"
#include "text/vocabulary.h"

namespace sx {

class Unigram : public WordModel {
 public:
  // `lookup` holds the tokens that words may consist of and must outlive this object; `scores` is [tokens]; `least` is
  // the smallest score of the whole vocabulary; `byte_token` is all kNoToken without byte fallback. With `in_float`,
  // sums are rounded to float as in SentencePiece. The `tokenizers` library adds in double; results differ for nearly
  // equal cuts.
  Unigram(const std::unordered_map<std::string_view, Token>& lookup, std::vector<double> scores, double least,
          const std::array<Token, 256>& byte_token, Token unk, bool in_float = false);
  void encode(std::string_view word, WordScratch& scratch, std::vector<Token>& out) const override;

 private:
  void emit(std::string_view text, std::vector<Token>& out) const;

  const std::unordered_map<std::string_view, Token>& lookup_;
  std::vector<double> scores_;
  double unknown_score_;
  std::array<Token, 256> byte_token_;
  Token unk_;
  bool in_float_;
  ByteTrie trie_;
};

}  // namespace sx
