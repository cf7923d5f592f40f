// UTF-8 and the little Unicode a tokeniser needs: strict decoding, replacement of malformed bytes, normal forms and
// lower case. The tables behind the last two are generated (tools/make_unicode_tables.py).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sx {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD
inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";             // U+2581, SentencePiece's visible space

// One step of decoding. Malformed input: valid is false, code is U+FFFD and length covers the longest prefix of a
// well-formed sequence (at least one byte), the practice of the Unicode standard, of Python and of Rust.
struct Utf8Step {
  char32_t code;
  uint8_t length;
  bool valid;
  bool truncated;  // not valid only because the text ends inside a sequence
};
Utf8Step utf8_step(std::string_view text, size_t at);

bool utf8_is_valid(std::string_view text);
// Each malformed part becomes one U+FFFD.
std::string utf8_lossy(std::string_view text);
void utf8_append(std::string& out, char32_t code);
// Bytes at the end of text that begin a sequence which later bytes could complete (0..3).
size_t utf8_open_tail(std::string_view text);

bool is_white_space(char32_t code);  // the Unicode property White_Space
// Length in bytes of the white space at the end of / at the start of text.
size_t white_space_suffix(std::string_view text);
size_t white_space_prefix(std::string_view text);

enum class NormalForm { kNfc, kNfd };
std::string normalize(std::string_view valid_utf8, NormalForm form);
std::string lower_case(std::string_view valid_utf8);

}  // namespace sx
