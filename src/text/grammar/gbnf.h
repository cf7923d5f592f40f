// Grammars as llama.cpp's users write them (GBNF): rules `name ::= body` of literals, character classes, other rules,
// groups, alternatives and repetitions; the text begins with the rule `root`. Comments run from # to the end of the
// line. A body goes on over line breaks inside parentheses and after `|`. One addition: in a literal behind an @, such
// as @"[TOOL_CALLS]", the texts of the vocabulary's control tokens stand for these tokens.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace sx {

inline constexpr size_t kMaxGrammarBytes = 256 << 10;
inline constexpr uint32_t kMaxRepeats = 100'000;  // of a repetition that is counted
inline constexpr uint32_t kNoLimit = std::numeric_limits<uint32_t>::max();

// A part of a rule's body.
struct GrammarPart {
  enum class Kind { kLiteral, kClass, kRule, kRepeat, kSequence, kChoice };
  struct Range {
    char32_t first, last;
  };

  Kind kind = Kind::kSequence;
  std::string bytes{};               // kLiteral: UTF-8
  bool control = false;              // kLiteral: texts of control tokens in it stand for these tokens
  std::vector<Range> ranges{};       // kClass: ascending, apart, without surrogates
  int rule = 0;                      // kRule
  uint32_t least = 0, most = 0;      // kRepeat; most may be kNoLimit
  std::vector<GrammarPart> parts{};  // kRepeat: one
};

struct GrammarRules {
  std::vector<std::string> names;
  std::vector<GrammarPart> bodies;  // of each
  int root = 0;
};

// Throws sx::Error naming line and column, or the rules that are missing, recurse on the left or never end.
GrammarRules parse_gbnf(std::string_view text);

// `text` as a literal of GBNF, quotes included.
std::string gbnf_literal(std::string_view text);

}  // namespace sx
