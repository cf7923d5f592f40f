// SentencePiece's own model file (tokenizer.model): a protocol buffer with the pieces, how they were trained and how
// text is normalised. Only what encoding and decoding need is kept; every length and number in the file is checked.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer_data.h"

namespace sx {

struct SentencePieceModel {
  struct Piece {
    std::string text;
    float score = 0;
    TokenType type = TokenType::kNormal;
  };
  std::vector<Piece> pieces;  // in the order of their ids
  bool unigram = true;        // Unigram or BPE
  bool byte_fallback = false;
  std::string bos_piece = "<s>", eos_piece = "</s>", pad_piece = "<pad>";
  // Normalisation.
  std::string character_map;  // compiled, see PieceNormalizer; empty when there is none
  bool dummy_prefix = true, remove_extra_spaces = true, escape_spaces = true;
};

// Throws sx::Error, naming `file`, when the bytes are no such model or use a feature that is not supported.
SentencePieceModel read_sentencepiece(std::string_view bytes, const std::string& file);

}  // namespace sx
