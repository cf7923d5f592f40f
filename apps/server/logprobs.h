// Tokens of an answer as clients are told of them: log-probabilities, and which piece of the text each token made.
#pragma once
#include <specextend/specextend.h>

#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sx::server {

constexpr double kLeastLogprob = -9999;  // stands for minus infinity, which JSON has no word for

struct TopToken {
  Token token = 0;
  double logprob = 0;
  std::string bytes;  // filled by the collector; control tokens are spelt out
};
struct Logprob {
  double logprob = 0;
  std::vector<TopToken> top;  // most likely first, equal ones by id
  bool known = true;          // false: of the first token of a prompt, which nothing comes before
  int rank = 0;               // of the token among all, the most likely is 1; 0: not known
};
// Of `token` and of the `top` most likely ones, by the softmax of a row of logits. NaN counts as minus infinity.
Logprob logprob_of(std::span<const float> logits, Token token, int top);

struct AnswerToken {
  Token token = 0;
  int depth = 0;      // of the accepted draft node it is; 0: it was not drafted
  std::string bytes;  // what it adds to the text; may be part of a character
  Logprob logprob;    // if asked for
  size_t end = 0;     // of the answer's tokens: the text up to its end, in bytes
  // Of the answer's tokens: the text has all of it. It lacks control tokens, and those of a stop string.
  bool in_text = true;
};

// Some text of one token, whole characters; the concatenation of all is the text.
struct TextShare {
  std::string text;
  int depth = 0;
};

// A piece of the answer's text and the tokens it completes: those of which no text is held back any more.
struct TextPiece {
  std::string text;
  std::vector<AnswerToken> tokens;
  std::vector<TextShare> shares;
  void append(TextPiece&& next);
};

// Follows on_token and on_text of one answer. Text is held back by the engine (possible stop strings, parts of
// characters), so a piece may complete several tokens or none. Every token comes out once, by finish() at the latest.
class TokenCollector {
 public:
  // `top`: how many alternatives to report, -1: no log-probabilities at all (TokenInfo::logits is not read then).
  TokenCollector(const Tokenizer& tokenizer, int top) : tokenizer_(tokenizer), top_(top) {}
  AnswerToken on_prompt(const TokenInfo& info) const;  // a token of the prompt; control tokens are spelt out
  void on_token(const TokenInfo& info);
  TextPiece on_text(std::string_view text);
  TextPiece finish();        // the tokens without text, such as those of a stop string
  std::string held() const;  // text that has come in tokens but not as text: begins with the stop string that ended it

 private:
  AnswerToken told(const TokenInfo& info, bool in_prompt) const;
  const Tokenizer& tokenizer_;
  const int top_;
  std::deque<AnswerToken> waiting_;  // tokens not completed yet
  size_t told_ = 0;                  // bytes that have come as text
  size_t used_ = 0;                  // bytes of the first of them that have come as text
  bool begins_ = true;               // no text has come yet
  int depth_ = 0;                    // of the token completed last
};

// The one of `stops` that `held` begins with, or nothing.
std::string stopping_word(const std::vector<std::string>& stops, std::string_view held);

}  // namespace sx::server
