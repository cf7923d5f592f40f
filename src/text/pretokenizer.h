// Cuts normalised text into the words that the vocabulary model encodes one by one. It is a list of steps as in
// tokenizer.json: each cuts or rewrites the pieces that the step before it left. GGUF's named pre-tokenisers are such
// lists too.
#pragma once
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/regex.h"

namespace sx {

// Pieces lie in one buffer, in order. Text that a step removes belongs to no piece.
struct Pieces {
  struct Span {
    size_t begin, end;
  };
  std::string text;
  std::vector<Span> spans;
};

enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct SplitStep {
  Regex pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // the text between the matches counts as the matches
};
// Prefixes each piece with a space when it has none (GPT-2's add_prefix_space).
struct PrefixSpaceStep {};
// Writes each byte as the character that GPT-2's alphabet has for it. This is needed only where further steps follow:
// at the end of the list the words stay bytes, and the model looks bytes up directly.
struct ByteAlphabetStep {};
struct MetaspaceStep {
  enum class Prepend { kAlways, kFirst, kNever };
  std::string replacement;
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};
// Cuts in front of every run of U+2581. Without it the whole text would be one word. It changes no tokens as long as no
// token has U+2581 behind another character (never_crosses_metaspace).
struct CutAtMetaspaceStep {};
using PreStep = std::variant<SplitStep, PrefixSpaceStep, ByteAlphabetStep, MetaspaceStep, CutAtMetaspaceStep>;
bool never_crosses_metaspace(std::string_view token_text);

class PreTokenizer {
 public:
  void add(PreStep step);
  // `at_start` says that the text begins the input and does not follow an added token.
  Pieces apply(std::string text, bool at_start, RegexScratch& scratch) const;

 private:
  std::vector<PreStep> steps_;
};

// GPT-2's alphabet has a printable character for every byte. Decoding fails for any other character.
std::string byte_alphabet_encode(std::string_view bytes);
bool byte_alphabet_decode(std::string_view text, std::string& bytes);
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace sx
