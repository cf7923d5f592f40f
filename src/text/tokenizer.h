// Text to tokens and back. One class for every vocabulary: byte-level BPE, SentencePiece and Unigram, from a GGUF file,
// a tokenizer.json or SentencePiece's tokenizer.model. Any number of threads may share one: it is const, without locks.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "formats/tokenizer_data.h"

namespace sx {

struct TokenizerParts;

// The position of the tokens that are decoded.
enum class TextPlace {
  kStart,   // They are a whole text, without the space that encoding put in front of it.
  kBehind,  // Other tokens stand before them: each adds its bytes_of(), the first one too.
};

class TokenCodec {
 public:
  // Throws sx::Error naming the file and the field that is missing, malformed or not supported.
  static std::unique_ptr<TokenCodec> create(const TokenizerData& data);
  ~TokenCodec();

  // `add_special` adds the beginning- and end-of-sequence tokens that the vocabulary asks for. With `parse_special`,
  // control tokens written in the text become single tokens (user-defined added tokens always do). Malformed UTF-8 is
  // read as U+FFFD, one per maximal ill-formed part.
  std::vector<Token> encode(std::string_view utf8, bool add_special, bool parse_special) const;
  // Returns valid UTF-8; malformed parts become U+FFFD. Ids outside the vocabulary print nothing.
  std::string decode(std::span<const Token> tokens, bool skip_special = false,
                     TextPlace place = TextPlace::kStart) const;

  // Returns the bytes that a token adds behind other tokens; none for control tokens and ids outside the vocabulary.
  // The first token of a whole text may show less (SentencePiece's leading space).
  std::string_view bytes_of(Token token) const;
  std::string printable(Token token) const;  // for display: control tokens by name, odd bytes escaped
  int size() const;                          // largest id + 1
  Token bos() const;
  Token eos() const;
  Token unk() const;
  bool is_control(Token token) const;
  bool is_end(Token token) const;                          // whether generation stops at it
  std::optional<Token> find(std::string_view text) const;  // by the token's text as the file writes it
  bool adds_bos() const;
  const std::string& chat_template() const;
  std::string description() const;

 private:
  friend class Detokenizer;
  explicit TokenCodec(std::unique_ptr<TokenizerParts> parts);
  std::unique_ptr<const TokenizerParts> parts_;
  std::vector<bool> is_end_;  // [size]
};

// Decodes tokens as they arrive. Pieces end at character boundaries; together with finish() they are exactly
// decode(tokens, !special), or its equivalent behind other text.
class Detokenizer {
 public:
  // With `special`, control tokens are shown. The tokenizer must outlive this object.
  explicit Detokenizer(const TokenCodec& tokenizer, bool special = false, TextPlace place = TextPlace::kStart);
  std::string push(Token token);
  std::string finish();  // returns the rest and resets the object

 private:
  std::string take(bool all);
  void start();

  const TokenCodec& tokenizer_;
  bool special_;
  TextPlace place_;
  bool first_ = true;    // the next token shown is the first of the text
  int strip_left_ = 0;   // leading characters still to be removed
  std::string pending_;  // bytes not yet handed out
};

}  // namespace sx
