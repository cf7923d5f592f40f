#include "text/grammar/gbnf.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "text/grammar/gbnf_check.h"
#include "text/unicode.h"

namespace sx {
namespace {

using Kind = GrammarPart::Kind;
using Range = GrammarPart::Range;

constexpr int kMaxRules = 16384, kMaxNesting = 64;
constexpr char32_t kLastCode = 0x10FFFF, kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Ascending, apart, without surrogates; `negated`: the other characters.
std::vector<Range> tidy(std::vector<Range> ranges, bool negated) {
  ranges.push_back({kFirstSurrogate, kLastSurrogate});
  std::sort(ranges.begin(), ranges.end(), [](Range a, Range b) { return a.first < b.first; });
  std::vector<Range> merged, out;
  for (Range r : ranges) {
    if (!merged.empty() && r.first <= merged.back().last + 1) merged.back().last = std::max(merged.back().last, r.last);
    else merged.push_back(r);
  }
  if (negated) {
    char32_t next = 0;
    for (Range r : merged) {
      if (r.first > next) out.push_back({next, char32_t(r.first - 1)});
      next = r.last + 1;
    }
    if (next <= kLastCode) out.push_back({next, kLastCode});
    return out;
  }
  for (Range r : merged) {  // the surrogates go out again
    if (r.first < kFirstSurrogate) out.push_back({r.first, std::min(r.last, char32_t(kFirstSurrogate - 1))});
    if (r.last > kLastSurrogate) out.push_back({std::max(r.first, char32_t(kLastSurrogate + 1)), r.last});
  }
  return out;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  GrammarRules parse() {
    if (text_.size() > kMaxGrammarBytes) fail("grammar: {} bytes, at most {} allowed", text_.size(), kMaxGrammarBytes);
    for (space(true); at_ < text_.size(); space(true)) rule();
    for (size_t i = 0; i < defined_.size(); ++i)
      if (!defined_[i])
        fail("grammar: rule {} is used in line {} but not defined", rules_.names[i], line_of(used_at_[i]));
    const auto root = ids_.find("root");
    if (root == ids_.end()) fail("grammar: there is no rule root");
    rules_.root = root->second;
    return std::move(rules_);
  }

 private:
  size_t line_of(size_t at) const { return 1 + size_t(std::count(text_.begin(), text_.begin() + ptrdiff_t(at), '\n')); }

  [[noreturn]] void wrong(const std::string& what) const { wrong_at(at_, what); }
  [[noreturn]] void wrong_at(size_t at, const std::string& what) const {
    const size_t start = at == 0 ? 0 : text_.rfind('\n', at - 1) + 1;  // npos + 1 is 0
    fail("grammar: line {}, column {}: {}", line_of(at), at - start + 1, what);
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  // White space and comments; `lines`: line breaks too.
  void space(bool lines) {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '#') at_ = std::min(text_.find('\n', at_), text_.size());
      if (at_ == text_.size()) return;
      const bool line = text_[at_] == '\n' || text_[at_] == '\r';
      if (line ? !lines : text_[at_] != ' ' && text_[at_] != '\t') return;
    }
  }

  std::string name() {
    const size_t start = at_;
    while (is_name(peek())) ++at_;
    if (at_ == start) wrong("a rule's name was expected");
    return std::string(text_.substr(start, at_ - start));
  }

  int rule_id(const std::string& name, size_t at) {
    const auto [found, fresh] = ids_.try_emplace(name, int(rules_.names.size()));
    if (!fresh) return found->second;
    if (rules_.names.size() == kMaxRules) wrong_at(at, fmt::format("more than {} rules", kMaxRules));
    rules_.names.push_back(name);
    rules_.bodies.emplace_back();
    defined_.push_back(false);
    used_at_.push_back(at);
    return found->second;
  }

  void rule() {
    const size_t start = at_;
    const std::string who = name();
    const int id = rule_id(who, start);
    if (defined_[size_t(id)]) wrong_at(start, fmt::format("rule {} is defined twice", who));
    defined_[size_t(id)] = true;
    space(false);
    if (!take("::=")) wrong(fmt::format("::= was expected after the name {}", who));
    space(true);
    GrammarPart body = choice(0);
    rules_.bodies[size_t(id)] = std::move(body);
    if (at_ < text_.size() && peek() != '\n' && peek() != '\r')
      wrong(fmt::format("unexpected {} in rule {}", seen(), who));
  }

  std::string seen() const {
    const Utf8Step step = utf8_step(text_, at_);
    return step.valid && step.code >= 0x20 ? fmt::format("'{}'", text_.substr(at_, step.length))
                                           : fmt::format("byte 0x{:02X}", uint8_t(text_[at_]));
  }

  GrammarPart choice(int depth) {
    if (depth > kMaxNesting) wrong(fmt::format("more than {} levels of parentheses", kMaxNesting));
    GrammarPart all;
    all.kind = Kind::kChoice;
    all.parts.push_back(sequence(depth));
    while (take("|")) {
      space(true);
      all.parts.push_back(sequence(depth));
    }
    return all.parts.size() == 1 ? std::move(all.parts[0]) : all;
  }

  GrammarPart sequence(int depth) {
    GrammarPart all;
    for (space(depth > 0); at_ < text_.size(); space(depth > 0)) {
      GrammarPart part;
      if (!item(depth, part)) break;
      all.parts.push_back(std::move(part));
      space(depth > 0);
      if (repeated(all.parts.back()) &&
          (space(depth > 0), std::string_view("*+?{").find(peek()) != std::string_view::npos) && peek())
        wrong("two repetitions in a row; parentheses would tell them apart");
    }
    return all;
  }

  bool item(int depth, GrammarPart& part) {
    const size_t start = at_;
    part.control = take("@");
    if (part.control && peek() != '"') wrong("a literal was expected after @");
    if (take("\"")) {
      part.kind = Kind::kLiteral;
      while (!take("\"")) utf8_append(part.bytes, character(start, "literal"));
    } else if (take("[")) {
      part.kind = Kind::kClass;
      part.ranges = char_class(start);
    } else if (take(".")) {
      part.kind = Kind::kClass;
      part.ranges = tidy({}, true);
    } else if (take("(")) {
      part = choice(depth + 1);
      if (!take(")")) wrong(fmt::format("the parenthesis of line {} is not closed", line_of(start)));
    } else if (is_name(peek())) {
      part.kind = Kind::kRule;
      part.rule = rule_id(name(), start);
    } else {
      return false;
    }
    return true;
  }

  std::vector<Range> char_class(size_t start) {
    const bool negated = take("^");
    std::vector<Range> ranges;
    while (!take("]")) {
      const size_t here = at_;
      const char32_t first = character(start, "class");
      char32_t last = first;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        last = character(start, "class");
      }
      if (last < first) wrong_at(here, "a range of characters whose end is before its beginning");
      ranges.push_back({first, last});
    }
    if (ranges.empty() && !negated) wrong_at(start, "a class without characters");
    ranges = tidy(std::move(ranges), negated);
    if (ranges.empty()) wrong_at(start, "a class without characters");
    return ranges;
  }

  // One character of a literal or class that began at `start`.
  char32_t character(size_t start, const char* what) {
    if (at_ == text_.size() || peek() == '\n') wrong_at(start, fmt::format("a {} that does not end on its line", what));
    const size_t here = at_;
    if (!take("\\")) {
      const Utf8Step step = utf8_step(text_, at_);
      if (!step.valid) wrong("malformed UTF-8");
      at_ += step.length;
      return step.code;
    }
    const char c = peek();
    ++at_;
    switch (c) {
      case 'n': return '\n';
      case 't': return '\t';
      case 'r': return '\r';
      case 'x': return hex(here, 2);
      case 'u': return hex(here, 4);
      case 'U': return hex(here, 8);
      default: break;
    }
    if (c <= ' ' || c == 0x7F || is_name(c) != (c == '-' || c == '_')) wrong_at(here, "an escape that is not known");
    return char32_t(c);  // punctuation stands for itself
  }

  char32_t hex(size_t start, int digits) {
    uint64_t code = 0;
    for (int i = 0; i < digits; ++i) {
      const int digit = hex_digit(peek());
      if (digit < 0) wrong_at(start, fmt::format("an escape with fewer than {} hexadecimal digits", digits));
      code = code * 16 + uint64_t(digit);
      ++at_;
    }
    if (code > kLastCode || (code >= kFirstSurrogate && code <= kLastSurrogate))
      wrong_at(start, "an escape that is no character");
    return char32_t(code);
  }

  // Wraps the part if a repetition follows.
  bool repeated(GrammarPart& part) {
    uint32_t least = 0, most = kNoLimit;
    const size_t start = at_;
    if (take("*")) {
    } else if (take("+")) {
      least = 1;
    } else if (take("?")) {
      most = 1;
    } else if (take("{")) {
      space(false);
      least = most = count();
      space(false);
      if (take(",")) {
        space(false);
        most = peek() == '}' ? kNoLimit : count();
        space(false);
      }
      if (!take("}")) wrong("a repetition that is not {n}, {n,} or {n,m}");
      if (most < least) wrong_at(start, "a repetition whose most is less than its least");
    } else {
      return false;
    }
    GrammarPart whole;
    whole.kind = Kind::kRepeat;
    whole.least = least;
    whole.most = most;
    whole.parts.push_back(std::move(part));
    part = std::move(whole);
    return true;
  }

  uint32_t count() {
    const size_t start = at_;
    uint32_t n = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      n = n * 10 + uint32_t(peek() - '0');
      if (n > kMaxRepeats) wrong_at(start, fmt::format("a repetition of more than {}", kMaxRepeats));
    }
    if (at_ == start) wrong("a repetition that is not {n}, {n,} or {n,m}");
    return n;
  }

  std::string_view text_;
  size_t at_ = 0;
  GrammarRules rules_;
  std::unordered_map<std::string, int> ids_;
  std::vector<bool> defined_;
  std::vector<size_t> used_at_;  // where each rule was first named
};

}  // namespace

GrammarRules parse_gbnf(std::string_view text) {
  GrammarRules rules = Parser(text).parse();
  check_grammar(rules);
  return rules;
}

std::string gbnf_literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') out += "\\n";
    else if (c == '\r') out += "\\r";
    else if (c == '\t') out += "\\t";
    else if (uint8_t(c) < 0x20) out += fmt::format("\\x{:02X}", uint8_t(c));
    else out += c;
  }
  return out + "\"";
}

}  // namespace sx
