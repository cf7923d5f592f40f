// Work on plain text shared by string methods and filters.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace sx::jinja {

// Text made from self keeps its markup flag.
inline Value same(const Value& self, std::string text) { return Value::string(std::move(text), self.is_markup()); }

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
