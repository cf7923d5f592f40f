// Rewrites text before it is split into words: Unicode normal forms, SentencePiece's visible spaces, replacements.
// It is applied to each stretch of text between added tokens, never to the added tokens themselves.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/regex.h"
#include "text/unicode.h"

namespace sx {

class PieceNormalizer;

struct NormalizeForm {
  NormalForm form;
};
struct NormalizeLower {};
struct NormalizePrepend {
  std::string text;  // put in front of non-empty text only
};
struct NormalizeReplace {
  Regex pattern;
  std::string content;
  std::string literal;  // the pattern if it is a plain string, which needs no regex engine
};
struct NormalizeStrip {
  bool left, right;
};
struct NormalizePieces {
  std::shared_ptr<const PieceNormalizer> how;
};
using NormalizeStep =
    std::variant<NormalizeForm, NormalizeLower, NormalizePrepend, NormalizeReplace, NormalizeStrip, NormalizePieces>;

class Normalizer {
 public:
  void add(NormalizeStep step);
  bool empty() const { return steps_.empty(); }
  std::string apply(std::string_view valid_utf8, RegexScratch& scratch) const;

 private:
  std::vector<NormalizeStep> steps_;
};

}  // namespace sx
