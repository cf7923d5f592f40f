// Work on plain text shared by the lexer, string methods and filters. A text is a sequence of characters as in Python;
// a byte that is no part of a well-formed character counts as one and survives (Python's surrogateescape).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"
#include "text/unicode.h"

namespace sx::jinja {

// Text made from self keeps its markup flag.
inline Value same(const Value& self, std::string text) { return Value::string(std::move(text), self.is_markup()); }

// Decodes the character at `at` and moves `at` behind it. A stray byte b yields 0xDC00 + b.
char32_t decode_at(std::string_view text, size_t& at);
// Appends a character; the inverse of decode_at.
void encode(char32_t c, std::string& out);
// The number of bytes of the character at `at`.
size_t char_bytes(std::string_view text, size_t at);
size_t count_chars(std::string_view text);
std::vector<char32_t> decode_all(std::string_view text);
std::string encode_all(const std::vector<char32_t>& chars);
// Decodes as decode_at does and appends what `append`, a case mapping, makes of the character. Stray bytes stay.
char32_t map_char(std::string_view text, size_t& at, std::string& out, void (*append)(std::string&, char32_t));

bool is_space(char32_t c);  // what Python's str.strip() removes
// Strips white space (chars == nullptr) or the characters of *chars from the chosen ends.
std::string_view strip(std::string_view text, bool left, bool right, const std::string* chars = nullptr);

std::string replace_text(std::string_view text, std::string_view from, std::string_view to, int64_t count);
// str.split / str.rsplit: separator null means runs of whitespace, limit < 0 means none.
std::vector<std::string> split_text(std::string_view text, const std::string* separator, int64_t limit,
                                    bool from_right);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);
std::string capitalize_text(std::string_view text);
std::string title_text(std::string_view text);
// str(separator).join(parts) of texts.
std::string join_text(const std::vector<std::string>& parts, std::string_view separator);

// Numbers from text as int() and float() read them; empty when the text is no number.
std::optional<int64_t> parse_int(std::string_view text);
std::optional<double> parse_float(std::string_view text);

}  // namespace sx::jinja
