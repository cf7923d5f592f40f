// The parts of a tokenizer. gguf_tokenizer, tokenizer_json and sentencepiece_tokenizer build them from their files.
// TokenCodec runs them: it finds added tokens, and the normaliser, the pre-tokeniser and the word model encode the text
// between them.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/special.h"
#include "text/vocabulary.h"

namespace sx {

// A file with more tokens than this is broken, and so is one whose ids leave more than kMostHoles numbers unused.
inline constexpr int64_t kMostTokens = 1 << 24;
inline constexpr int64_t kMostHoles = 1 << 14;

// Decoding changes the start of a text by this rule, and by TokenTable::first_bytes.
struct DecodeRule {
  std::string strip;  // one character removed from the start of the whole text, at most strip_count times
  int strip_count = 0;
};

struct TokenizerParts {
  TokenTable vocabulary;
  std::unordered_map<std::string_view, Token> model_lookup;  // the texts of the word model, if it does not use all
  AddedTokens added;                                         // found in the raw text
  AddedTokens added_normalized;                              // found in the normalised text
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<WordModel> model;
  std::vector<Token> prefix, suffix;  // what add_special adds
  DecodeRule decode;
  Token bos = kNoToken, eos = kNoToken, unk = kNoToken;
  std::vector<Token> ends;  // tokens that end a generation, besides eos
  std::string chat_template;
  std::string description;
};

std::unique_ptr<TokenizerParts> gguf_tokenizer(const TokenizerData& data);
std::unique_ptr<TokenizerParts> json_tokenizer(const TokenizerData& data);
std::unique_ptr<TokenizerParts> sentencepiece_tokenizer(const TokenizerData& data);
// Calls the one of the three that the data is for.
std::unique_ptr<TokenizerParts> tokenizer_parts(const TokenizerData& data);

// Says whether a special token of a GGUF vocabulary includes the white space behind it.
bool special_strips_right(const TokenizerData& data, std::string_view text);
// Recognises the names by which published vocabularies mark the end of a turn or of a text. "<|end|>" ends Phi's
// answers, but only a part of an answer where the vocabulary has a word for its end besides; so does "</s>" with
// "<eos>".
bool is_end_token_name(std::string_view text, const TokenTable& vocabulary);

}  // namespace sx
