// The one Unicode module of the project, for tokenizers and chat templates: strict UTF-8 decoding, replacement of
// malformed bytes, normal forms, case mapping and a few character classes. The character data comes from utf8proc
// (docs/decisions/011-utf8proc.md).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sx {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD
inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";             // U+2581, SentencePiece's visible space

// The result of decoding one character. For malformed input valid is false, code is U+FFFD and length covers the
// longest prefix of a well-formed sequence (at least one byte), as the Unicode standard, Python and Rust do it.
struct Utf8Step {
  char32_t code;
  uint8_t length;
  bool valid;
  bool truncated;  // the sequence is malformed only because the text ends inside it
};
Utf8Step utf8_step(std::string_view text, size_t at);

bool utf8_is_valid(std::string_view text);
// Returns the text with each malformed part replaced by one U+FFFD.
std::string utf8_lossy(std::string_view text);
void utf8_append(std::string& out, char32_t code);
// Counts the bytes at the end of text (0..3) that begin a sequence which later bytes could complete.
size_t utf8_open_tail(std::string_view text);

bool is_white_space(char32_t code);  // the Unicode property White_Space
// These return the length in bytes of the white space at the end and at the start of text.
size_t white_space_suffix(std::string_view text);
size_t white_space_prefix(std::string_view text);

bool is_alphanumeric(char32_t code);  // a letter or any kind of number
bool is_cased(char32_t code);         // lower, upper or title case
bool is_printable(char32_t code);     // what Python's repr() shows as it is

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
std::string normalize(std::string_view valid_utf8, NormalForm form);

// Full case mapping of one character: one character may become up to three. Neither looks at the neighbours.
void append_lower(std::string& out, char32_t code);
void append_upper(std::string& out, char32_t code);
void append_title(std::string& out, char32_t code);
// Case mapping of each character of a text; malformed bytes stay as they are.
std::string lower_case(std::string_view text);
std::string upper_case(std::string_view text);

}  // namespace sx
