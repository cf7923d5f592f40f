// What a tokenizer is made of. gguf_tokenizer, tokenizer_json and sentencepiece_tokenizer each build one of these from
// their files; TokenCodec only runs it: added tokens, then normaliser, pre-tokeniser and word model on the text between them.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/special.h"
#include "text/vocabulary.h"

namespace sx {

// What decoding does to the start of a text, besides TokenTable::first_bytes.
struct DecodeRule {
  std::string strip;  // one character removed from the start of the whole text, at most strip_count times
  int strip_count = 0;
};

struct TokenizerParts {
  TokenTable vocabulary;
  std::unordered_map<std::string_view, Token> model_lookup;  // the word model's own text -> token, when not all of it
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
// Whichever of them the data is for.
std::unique_ptr<TokenizerParts> tokenizer_parts(const TokenizerData& data);

// Whether a special token of a GGUF vocabulary swallows the white space behind it.
bool special_strips_right(const TokenizerData& data, std::string_view text);
// Names under which published vocabularies mark the end of a turn or of a text.
bool is_end_token_name(std::string_view text);

}  // namespace sx
