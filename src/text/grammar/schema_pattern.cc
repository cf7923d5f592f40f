// Regular expressions: characters, classes, groups, alternatives, repetitions, and anchors at the ends of an
// alternative. In a JSON schema they describe the text of a string, which is written with the escapes JSON asks for;
// alone they describe a whole text.
#include <algorithm>

#include "base/error.h"
#include "text/grammar/gbnf.h"
#include "text/grammar/schema_parts.h"
#include "text/unicode.h"

namespace sx {
namespace {

using Ranges = std::vector<GrammarPart::Range>;

constexpr int kMaxPatternNesting = 24;
constexpr char32_t kLastPoint = 0x10FFFF;

Ranges all_but(Ranges ranges) {
  std::sort(ranges.begin(), ranges.end(), [](auto a, auto b) { return a.first < b.first; });
  Ranges out;
  char32_t next = 0;
  for (auto r : ranges) {
    if (r.first > next) out.push_back({next, char32_t(r.first - 1)});
    next = std::max(next, char32_t(r.last + 1));
  }
  if (next <= kLastPoint) out.push_back({next, kLastPoint});
  return out;
}

// The class of a letter: \d, \w, \s; empty: none.
Ranges named(char c) {
  switch (c) {
    case 'd': return {{'0', '9'}};
    case 'w': return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    // Not all agree on white space beyond ASCII, so neither class has it.
    case 's': return {{'\t', '\r'}, {' ', ' '}};
    case 'S':
      return all_but({{'\t', '\r'},
                      {0x1C, ' '},
                      {0x85, 0x85},
                      {0xA0, 0xA0},
                      {0x1680, 0x1680},
                      {0x2000, 0x200A},
                      {0x2028, 0x2029},
                      {0x202F, 0x202F},
                      {0x205F, 0x205F},
                      {0x3000, 0x3000},
                      {0xFEFF, 0xFEFF}});
    case 'D':
    case 'W': return all_but(named(char(c - 'A' + 'a')));
    default: return {};
  }
}

// One character of the class, in a JSON string as JSON writes it.
std::string gbnf_of(const Ranges& ranges, bool in_json) {
  const auto contains = [&](char32_t c) {
    return std::any_of(ranges.begin(), ranges.end(), [&](auto r) { return r.first <= c && c <= r.last; });
  };
  std::string plain, out;
  const auto add = [&](char32_t first, char32_t last) {
    if (first > last) return;
    plain += fmt::format("\\U{:08X}", uint32_t(first));
    if (last > first) plain += fmt::format("-\\U{:08X}", uint32_t(last));
  };
  // Without surrogates, and in JSON without control characters, quotes and backslashes.
  const Ranges allowed = in_json ? Ranges{{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0xD7FF}, {0xE000, kLastPoint}}
                                 : Ranges{{0x01, 0xD7FF}, {0xE000, kLastPoint}};
  for (auto r : ranges)
    for (auto p : allowed) add(std::max(r.first, p.first), std::min(r.last, p.last));
  if (!plain.empty()) out = "[" + plain + "]";
  if (!in_json) return out;
  constexpr std::pair<char32_t, const char*> kEscaped[] = {
      {'"', "\\\""}, {'\\', "\\\\"}, {'\n', "\\n"}, {'\t', "\\t"}, {'\r', "\\r"}};
  for (const auto& [c, escape] : kEscaped)
    if (contains(c)) out += (out.empty() ? "" : " | ") + gbnf_literal(escape);
  return out;
}

class PatternReader {
 public:
  // `where` is empty outside of a schema.
  PatternReader(const std::string& text, const std::string& where) : text_(text), where_(where) {}

  std::string whole() {
    std::string out = branch();
    while (take('|')) out += " | " + branch();
    if (at_ < text_.size()) wrong("a parenthesis that was not opened");
    return "(" + out + ")";
  }

 private:
  [[noreturn]] void wrong(const std::string& what) const {
    const std::string place = where_.empty() ? "" : fmt::format("json schema: {}: ", where_);
    constexpr auto kReplace = Schema::error_handler_t::replace;
    fail("{}pattern {}: {} (at byte {})", place, Schema(text_).dump(-1, ' ', false, kReplace), what, at_);
  }
  bool more() const { return at_ < text_.size(); }
  bool take(char c) {
    if (!more() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  // An alternative of the whole: what is not anchored may stand anywhere in a schema's string.
  std::string branch() {
    const bool from_start = take('^');
    const std::string inner = sequence(0);
    const bool to_end = take('$');
    if (more() && text_[at_] != '|' && text_[at_] != ')') wrong("an anchor that is not at an end of the pattern");
    if (where_.empty()) return inner;
    return (from_start ? "" : "char* ") + inner + (to_end ? "" : " char*");
  }

  std::string alternatives(int depth) {
    if (depth > kMaxPatternNesting) wrong("nested too deep");
    std::string out = sequence(depth);
    while (take('|')) out += " | " + sequence(depth);
    return out;
  }

  std::string sequence(int depth) {
    std::string out;
    while (more() && text_[at_] != '|' && text_[at_] != ')' && text_[at_] != '$') {
      if (text_[at_] == '^') wrong("an anchor that is not at an end of the pattern");
      const std::string one = atom(depth);  // read before its quantifier
      out += (out.empty() ? "" : " ") + one + quantifier();
    }
    return out.empty() ? "\"\"" : out;
  }

  std::string atom(int depth) {
    if (take('(')) {
      if (take('?') && !take(':')) wrong("groups other than ( ) and (?: ) are not supported");
      const std::string inner = alternatives(depth + 1);
      if (!take(')'))
        wrong(more() ? "an anchor that is not at an end of the pattern" : "a parenthesis that is not closed");
      return "(" + inner + ")";
    }
    Ranges ranges;
    if (take('[')) ranges = char_class();
    else if (take('.')) ranges = all_but({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
    else if (take('\\')) ranges = escape();
    else if (std::string_view("*+?{").find(text_[at_]) != std::string_view::npos) wrong("a repetition of nothing");
    else {
      const char32_t c = character();
      ranges = {{c, c}};
    }
    const std::string out = gbnf_of(ranges, !where_.empty());
    if (out.empty()) wrong("a class without characters a string could have");
    return "(" + out + ")";
  }

  char32_t character() {
    const Utf8Step step = utf8_step(text_, at_);
    at_ += step.length;
    return step.code;
  }

  Ranges escape() {
    if (!more()) wrong("it ends with a backslash");
    const char c = text_[at_++];
    if (Ranges ranges = named(c); !ranges.empty()) return ranges;
    char32_t code = char32_t(uint8_t(c));
    switch (c) {
      case 'n': code = '\n'; break;
      case 't': code = '\t'; break;
      case 'r': code = '\r'; break;
      case 'x': code = hex(2); break;
      case 'u': code = hex(4); break;
      default:
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || uint8_t(c) >= 0x80)
          wrong(fmt::format("\\{} is not supported", uint8_t(c) < 0x80 ? std::string(1, c) : "..."));
    }
    return {{code, code}};
  }

  char32_t hex(int digits) {
    char32_t code = 0;
    for (int i = 0; i < digits; ++i) {
      const size_t value =
          more() ? std::string_view("0123456789abcdefABCDEF").find(text_[at_]) : std::string_view::npos;
      if (value == std::string_view::npos) wrong("a hexadecimal escape that is too short");
      code = code * 16 + char32_t(value > 15 ? value - 6 : value);
      ++at_;
    }
    return code;
  }

  Ranges char_class() {
    const bool negated = take('^');
    Ranges ranges;
    while (!take(']')) {
      if (!more()) wrong("a class that is not closed");
      Ranges one = class_item();
      if (one.size() == 1 && one[0].first == one[0].last && at_ + 1 < text_.size() && text_[at_] == '-' &&
          text_[at_ + 1] != ']') {
        ++at_;
        const Ranges last = class_item();
        if (last.size() != 1 || last[0].first != last[0].last || last[0].first < one[0].first)
          wrong("a range of characters that is none");
        one[0].last = last[0].first;
      }
      ranges.insert(ranges.end(), one.begin(), one.end());
    }
    return negated ? all_but(std::move(ranges)) : ranges;
  }
  Ranges class_item() {
    if (take('\\')) return take('b') ? Ranges{{8, 8}} : escape();
    const char32_t c = character();
    return {{c, c}};
  }

  std::string quantifier() {
    std::string out;
    if (take('*')) out = "*";
    else if (take('+')) out = "+";
    else if (take('?')) out = "?";
    else if (more() && text_[at_] == '{') {
      const size_t start = at_++;
      const uint32_t least = count();
      if (take(',') && more() && text_[at_] != '}' && count() < least)
        wrong("a repetition whose most is less than its least");
      if (!more()) wrong("a repetition that is not closed");
      if (!take('}')) wrong("a repetition that is not {n}, {n,} or {n,m}");
      out = text_.substr(start, at_ - start);
    }
    if (!out.empty()) take('?');  // lazy or not, the texts are the same
    return out;
  }

  uint32_t count() {
    const size_t start = at_;
    uint32_t n = 0;
    for (; more() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      n = n * 10 + uint32_t(text_[at_] - '0');
      if (n > kMaxRepeats) wrong(fmt::format("a repetition of more than {}", kMaxRepeats));
    }
    if (at_ == start) wrong("a repetition that is not {n}, {n,} or {n,m}");
    return n;
  }

  const std::string& text_;
  const std::string& where_;
  size_t at_ = 0;
};

}  // namespace

std::string gbnf_of_pattern(const std::string& pattern, const std::string& where) {
  return PatternReader(pattern, where).whole();
}

std::string gbnf_of_regex(const std::string& pattern) {
  std::string grammar = "root ::= " + PatternReader(pattern, "").whole() + "\n";
  if (grammar.size() > kMaxGrammarBytes)
    fail("a pattern of {} bytes: its grammar is larger than {} bytes", pattern.size(), kMaxGrammarBytes);
  return grammar;
}

}  // namespace sx
