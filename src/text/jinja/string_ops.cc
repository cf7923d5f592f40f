// Characters of a text, and splitting, joining, replacing, capitalising and reading numbers as Python does it.
#include "text/jinja/string_ops.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "text/jinja/ops.h"

namespace sx::jinja {

namespace {

constexpr char32_t kStrayByte = 0xDC00;  // added to a byte that is no part of a character

}  // namespace

char32_t decode_at(std::string_view text, size_t& at) {
  const Utf8Step step = utf8_step(text, at);
  if (!step.valid) return kStrayByte + static_cast<unsigned char>(text[at++]);
  at += step.length;
  return step.code;
}

void encode(char32_t c, std::string& out) {
  if (c >= kStrayByte + 0x80 && c <= kStrayByte + 0xFF) out.push_back(static_cast<char>(c - kStrayByte));
  else utf8_append(out, c >= 0xD800 && c <= 0xDFFF ? char32_t{0xFFFD} : c);
}

size_t char_bytes(std::string_view text, size_t at) {
  const Utf8Step step = utf8_step(text, at);
  return step.valid ? step.length : 1;
}

size_t count_chars(std::string_view text) {
  size_t n = 0;
  for (size_t at = 0; at < text.size(); ++n) at += char_bytes(text, at);
  return n;
}

std::vector<char32_t> decode_all(std::string_view text) {
  std::vector<char32_t> chars;
  chars.reserve(text.size());
  for (size_t at = 0; at < text.size();) chars.push_back(decode_at(text, at));
  return chars;
}

std::string encode_all(const std::vector<char32_t>& chars) {
  std::string out;
  out.reserve(chars.size());
  for (char32_t c : chars) encode(c, out);
  return out;
}

char32_t map_char(std::string_view text, size_t& at, std::string& out, void (*append)(std::string&, char32_t)) {
  const char32_t c = decode_at(text, at);
  c >= kStrayByte&& c <= kStrayByte + 0xFF ? encode(c, out) : append(out, c);
  return c;
}

bool is_space(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

std::string_view strip(std::string_view text, bool left, bool right, const std::string* chars) {
  std::vector<char32_t> set;
  if (chars != nullptr) set = decode_all(*chars);
  const auto drop = [&](char32_t c) {
    return chars == nullptr ? is_space(c) : std::find(set.begin(), set.end(), c) != set.end();
  };
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    size_t next = begin;
    if (!drop(decode_at(text, next))) break;
    begin = next;
  }
  while (right && begin < end) {
    // The last character starts at most three bytes before the last byte; where none ends there, that byte is stray.
    size_t start = end - 1;
    for (size_t back = 2; back <= 4 && back <= end - begin; ++back)
      if (char_bytes(text.substr(0, end), end - back) == back) start = end - back;
    size_t next = start;
    if (!drop(decode_at(text.substr(0, end), next))) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

std::string replace_text(std::string_view text, std::string_view from, std::string_view to, int64_t count) {
  Heap& heap = Heap::current();
  heap.search(text.size(), from.size());
  std::string out;
  size_t at = 0;
  const auto more = [&] {
    heap.check_text(out.size());
    return count < 0 || count-- > 0;
  };
  if (from.empty()) {
    while (more()) {
      out += to;
      if (at >= text.size()) return out;
      const size_t n = char_bytes(text, at);
      out += text.substr(at, n);
      at += n;
    }
    return out += text.substr(at);
  }
  for (size_t found; (found = text.find(from, at)) != std::string_view::npos && more();) {
    (out += text.substr(at, found - at)) += to;
    at = found + from.size();
  }
  return out += text.substr(at);
}

static std::vector<std::string> split_whitespace(std::string_view text, int64_t limit, bool from_right) {
  std::vector<std::string> parts;
  // Words as byte ranges; then the first (or last) `limit` are cut off and the rest stays whole.
  std::vector<std::pair<size_t, size_t>> words;
  for (size_t at = 0; at < text.size();) {
    size_t next = at;
    const bool space = is_space(decode_at(text, next));
    if (!space && (words.empty() || words.back().second != at)) words.emplace_back(at, next);
    else if (!space) words.back().second = next;
    at = next;
  }
  const size_t n = words.size();
  const size_t cut = limit < 0 || static_cast<size_t>(limit) >= n ? n : static_cast<size_t>(limit);
  const auto word = [&](size_t i) {
    return std::string(text.substr(words[i].first, words[i].second - words[i].first));
  };
  if (from_right && cut < n) {
    const std::string_view rest = strip(text.substr(0, words[n - cut - 1].second), false, true);
    parts.emplace_back(rest);
    for (size_t i = n - cut; i < n; ++i) parts.push_back(word(i));
    return parts;
  }
  for (size_t i = 0; i < cut; ++i) parts.push_back(word(i));
  if (cut < n) parts.emplace_back(text.substr(words[cut].first));
  return parts;
}

std::vector<std::string> split_text(std::string_view text, const std::string* separator, int64_t limit,
                                    bool from_right) {
  Heap::current().step(1 + text.size() / 4);
  if (separator == nullptr) return split_whitespace(text, limit, from_right);
  if (separator->empty()) raise("empty separator");
  Heap::current().search(text.size(), separator->size());
  std::vector<std::string> parts;
  if (from_right) {
    while (limit < 0 || limit-- > 0) {
      const size_t found = text.rfind(*separator);
      if (found == std::string_view::npos) break;
      parts.emplace_back(text.substr(found + separator->size()));
      text = text.substr(0, found);
    }
    parts.emplace_back(text);
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  while (limit < 0 || limit-- > 0) {
    const size_t found = text.find(*separator);
    if (found == std::string_view::npos) break;
    parts.emplace_back(text.substr(0, found));
    text = text.substr(found + separator->size());
  }
  parts.emplace_back(text);
  return parts;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  Heap::current().step(1 + text.size() / 4);
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const char32_t c = decode_at(text, at);
    const bool end = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!end) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.emplace_back(text.substr(begin, (keep_ends ? at : here) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string capitalize_text(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const bool first = at == 0;
    map_char(text, at, out, first ? append_title : append_lower);
  }
  return out;
}

std::string title_text(std::string_view text) {
  std::string out;
  bool cased_before = false;
  for (size_t at = 0; at < text.size();) {
    cased_before = is_cased(map_char(text, at, out, cased_before ? append_lower : append_title));
  }
  return out;
}

std::string join_text(const std::vector<std::string>& parts, std::string_view separator) {
  Heap& heap = Heap::current();
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i != 0) out += separator;
    out += parts[i];
    heap.check_text(out.size());
  }
  return out;
}

static std::string without_underscores(std::string_view text) {
  text = strip(text, true, true);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() && text[i - 1] != '_' && text[i + 1] != '_';
    if (text[i] != '_' || !between) out.push_back(text[i]);
  }
  return out;
}

std::optional<int64_t> parse_int(std::string_view text) {
  std::string s = without_underscores(text);
  if (s.size() > 1 && s[0] == '+' && s[1] != '-') s.erase(0, 1);
  int64_t value = 0;
  const auto result = std::from_chars(s.data(), s.data() + s.size(), value);
  if (result.ptr != s.data() + s.size() || result.ec == std::errc::invalid_argument) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) raise("the integer {} does not fit 64 bits", s.substr(0, 40));
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  const std::string s = without_underscores(text);
  const std::string lower = lower_case(s);
  if (s.empty() || lower.find_first_of("xp") != std::string::npos || lower.find("nan(") != std::string::npos)
    return std::nullopt;
  char* end = nullptr;
  const double d = std::strtod(s.c_str(), &end);
  if (end != s.c_str() + s.size()) return std::nullopt;
  return d;
}

}  // namespace sx::jinja
