// One class walks the source: text up to the next tag, then the tokens inside the tag. Whitespace control is decided
// where a tag begins (what to strip before it) and where it ends (what to swallow behind it).
#include "text/jinja/lexer.h"

#include <charconv>
#include <cstdlib>
#include <optional>

#include "text/jinja/string_ops.h"
#include "text/jinja/value.h"

namespace sx::jinja {

namespace {

bool ascii_digit(char c) { return c >= '0' && c <= '9'; }
bool name_char(char c) {
  return ascii_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
}

// Turns \r\n and \r into \n and drops one newline at the very end.
std::string normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      out.push_back('\n');
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view source, int& line) : text_(normalize(source)), line_(line) { line_ = 1; }

  std::vector<Token> run() {
    while (at_ < text_.size()) root();
    push(Tok::kEnd, "");
    return std::move(tokens_);
  }

 private:
  bool has(std::string_view s, size_t at) const { return std::string_view(text_).substr(at, s.size()) == s; }
  char peek(size_t at) const { return at < text_.size() ? text_[at] : '\0'; }
  void push(Tok kind, std::string text) { tokens_.push_back(Token{kind, line_, std::move(text)}); }

  void advance(size_t to) {
    for (; at_ < to; ++at_) line_ += text_[at_] == '\n';
  }
  size_t skip_space(size_t at) const {
    while (at < text_.size()) {
      size_t next = at;
      if (!is_space(decode_at(text_, next))) break;
      at = next;
    }
    return at;
  }

  // Emits text [at_, tag) with the tag's stripping rule applied, and moves to `tag`.
  void data(size_t tag, char sign, bool may_lstrip) {
    std::string_view data = std::string_view(text_).substr(at_, tag - at_);
    if (sign == '-') {
      data = strip(data, false, true);
    } else if (sign != '+' && may_lstrip) {
      const size_t newline = data.rfind('\n');
      const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
      if ((begin > 0 || line_starting_) && strip(data.substr(begin), true, false).empty()) data = data.substr(0, begin);
    }
    if (!data.empty()) push(Tok::kData, std::string(data));
    advance(tag);
  }

  void root() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = text_.find('{', tag);
      if (tag == std::string::npos) {
        push(Tok::kData, text_.substr(at_));
        advance(text_.size());
        return;
      }
      const char kind = peek(tag + 1);
      if (kind == '%' || kind == '{' || kind == '#') break;
    }
    const char kind = text_[tag + 1];
    const char sign = peek(tag + 2) == '-' || peek(tag + 2) == '+' ? text_[tag + 2] : '\0';
    data(tag, sign, kind != '{');
    const size_t inside = tag + 2 + (sign != '\0');
    if (kind == '#') return comment(inside);
    if (kind == '%' && raw(inside)) return;
    push(kind == '%' ? Tok::kBlockBegin : Tok::kVariableBegin, "");
    advance(inside);
    kind == '%' ? inner("%}", Tok::kBlockEnd) : inner("}}", Tok::kVariableEnd);
  }

  // Moves behind a closing mark at `end` ("%}" or "#}", a sign may precede it) and swallows what the sign asks for.
  void close(size_t end, char sign, bool trim_newline) {
    size_t to = end + 2;
    if (sign == '-') to = skip_space(to);
    else if (sign != '+' && trim_newline && peek(to) == '\n') ++to;
    advance(to);
    line_starting_ = at_ > 0 && text_[at_ - 1] == '\n';
  }

  void comment(size_t inside) {
    const size_t end = text_.find("#}", inside);
    if (end == std::string::npos) raise("missing end of comment tag");
    const char sign = end > inside ? text_[end - 1] : '\0';
    close(end, sign, true);
  }

  // Reads {% raw %} ... {% endraw %}; returns false for another tag.
  bool raw(size_t inside) {
    size_t at = skip_space(inside);
    if (!has("raw", at)) return false;
    at = skip_space(at + 3);
    const bool minus = has("-%}", at);
    if (!minus && !has("%}", at)) return false;
    at += minus ? 3 : 2;
    advance(minus ? skip_space(at) : at);
    line_starting_ = text_[at_ - 1] == '\n';
    for (size_t tag = at_; (tag = text_.find("{%", tag)) != std::string::npos; ++tag) {
      const char sign = peek(tag + 2) == '-' || peek(tag + 2) == '+' ? text_[tag + 2] : '\0';
      size_t end = skip_space(tag + 2 + (sign != '\0'));
      if (!has("endraw", end)) continue;
      end = skip_space(end + 6);
      const char end_sign = peek(end) == '-' || peek(end) == '+' ? text_[end] : '\0';
      if (end_sign != '\0') ++end;
      if (!has("%}", end)) continue;
      data(tag, sign, true);
      close(end, end_sign, true);
      return true;
    }
    raise("missing end of raw directive");
  }

  void inner(std::string_view mark, Tok end_kind) {
    std::string brackets;
    while (true) {
      if (at_ >= text_.size()) {
        line_starting_ = false;
        return;  // The parser reports the unexpected end.
      }
      if (brackets.empty()) {
        const char c = text_[at_];
        const bool sign = (c == '-' || (c == '+' && mark == "%}")) && has(mark, at_ + 1);
        if (sign || has(mark, at_)) {
          push(end_kind, "");
          close(at_ + sign, sign ? c : '\0', mark == "%}");
          return;
        }
      }
      const size_t space = skip_space(at_);
      if (space != at_) advance(space);
      else if (!number() && !name() && !string()) op(brackets);
    }
  }

  // Returns the end of a run of digits, which may have single underscores between them.
  size_t digits(size_t at, bool (*accept)(char)) const {
    while (accept(peek(at)) || (peek(at) == '_' && accept(peek(at + 1)))) ++at;
    return at;
  }

  bool number() {
    if (!ascii_digit(text_[at_])) return false;
    const bool after_dot = at_ > 0 && text_[at_ - 1] == '.';
    size_t end = digits(at_, ascii_digit);
    bool real = false;
    if (!after_dot) {
      size_t fraction = end;
      if (peek(end) == '.' && ascii_digit(peek(end + 1))) fraction = digits(end + 1, ascii_digit);
      size_t exponent = fraction;
      if (peek(fraction) == 'e' || peek(fraction) == 'E') {
        size_t from = fraction + 1 + (peek(fraction + 1) == '+' || peek(fraction + 1) == '-');
        if (ascii_digit(peek(from))) exponent = digits(from, ascii_digit);
      }
      real = exponent != end;
      end = exponent;
    }
    // Chat templates have neither numbers of other bases nor leading zeros.
    const char next = static_cast<char>(peek(end) | 0x20);
    if (!real && text_[at_] == '0' && (end > at_ + 1 || next == 'x' || next == 'o' || next == 'b'))
      raise("a number that starts with 0 is not supported: only decimal numbers are");
    std::string literal;
    for (size_t i = at_; i < end; ++i)
      if (text_[i] != '_') literal.push_back(text_[i]);
    push(real ? Tok::kFloat : Tok::kInteger, literal);
    if (real) {
      tokens_.back().real = std::strtod(literal.c_str(), nullptr);
    } else {
      const auto result = std::from_chars(literal.data(), literal.data() + literal.size(), tokens_.back().integer);
      if (result.ec != std::errc()) raise("the integer {} is too large", literal);
    }
    advance(end);
    return true;
  }

  bool name() {
    if (!name_char(text_[at_])) return false;
    size_t end = at_;
    while (end < text_.size() && name_char(text_[end])) {
      size_t next = end;
      const char32_t c = decode_at(text_, next);
      if (c >= 0x80 && !is_alphanumeric(c)) raise("unexpected character in a name");
      end = next;
    }
    push(Tok::kName, text_.substr(at_, end - at_));
    advance(end);
    return true;
  }

  bool string() {
    const char quote = text_[at_];
    if (quote != '"' && quote != '\'') return false;
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) raise("unexpected char {} (a string without its end)", quote);
    push(Tok::kString, unescape(std::string_view(text_).substr(at_ + 1, end - at_ - 1)));
    advance(end + 1);
    return true;
  }

  static uint32_t hex_digits(std::string_view s, size_t at, size_t count) {
    uint32_t value = 0;
    const char* first = s.data() + at;
    if (at + count > s.size()) raise("a truncated escape in a string");
    const auto result = std::from_chars(first, first + count, value, 16);
    if (result.ec != std::errc() || result.ptr != first + count) raise("a malformed escape in a string");
    return value;
  }

  // Resolves Python's escapes; an unknown one stays as it is.
  static std::string unescape(std::string_view s) {
    std::string out;
    for (size_t i = 0; i < s.size(); ++i) {
      if (s[i] != '\\' || i + 1 >= s.size()) {
        out.push_back(s[i]);
        continue;
      }
      const char c = s[++i];
      static constexpr std::string_view kNames = "\\'\"abfnrtv", kMeanings = "\\'\"\a\b\f\n\r\t\v";
      const size_t known = kNames.find(c);
      if (known != std::string_view::npos) {
        out.push_back(kMeanings[known]);
      } else if (c == '\n') {
        // a continued line
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        uint32_t value = hex_digits(s, i + 1, count);
        i += count;
        const bool high = value >= 0xD800 && value < 0xDC00;
        if (high && i + 6 < s.size() && s[i + 1] == '\\' && s[i + 2] == 'u') {
          const uint32_t low = hex_digits(s, i + 3, 4);
          if (low >= 0xDC00 && low < 0xE000) {
            value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
            i += 6;
          }
        }
        if (value > 0x10FFFF) raise("an illegal character number in a string");
        encode(value >= 0xD800 && value < 0xE000 ? 0xFFFD : value, out);
      } else if (c >= '0' && c <= '7') {
        uint32_t value = 0;
        for (int n = 0; n < 3 && i < s.size() && s[i] >= '0' && s[i] <= '7'; ++n)
          value = value * 8 + static_cast<uint32_t>(s[i++] - '0');
        --i;
        encode(value, out);
      } else if (c == 'N') {
        raise("character names (\\N) in strings are not supported");
      } else {
        out.push_back('\\');
        out.push_back(c);
      }
    }
    return out;
  }

  void op(std::string& brackets) {
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    for (std::string_view two : kTwo) {
      if (!has(two, at_)) continue;
      push(Tok::kOperator, std::string(two));
      advance(at_ + 2);
      return;
    }
    const char c = text_[at_];
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos)
      raise("unexpected char '{}'", std::string_view(text_).substr(at_, char_bytes(text_, at_)));
    if (c == '(') brackets.push_back(')');
    if (c == '[') brackets.push_back(']');
    if (c == '{') brackets.push_back('}');
    if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty()) raise("unexpected '{}'", c);
      if (brackets.back() != c) raise("unexpected '{}', expected '{}'", c, brackets.back());
      brackets.pop_back();
    }
    push(Tok::kOperator, std::string(1, c));
    advance(at_ + 1);
  }

  const std::string text_;
  int& line_;
  size_t at_ = 0;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, int& line) { return Lexer(source, line).run(); }

}  // namespace sx::jinja
