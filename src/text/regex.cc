// The PCRE2 side of the pre-tokenisers. JIT code is used where the library has it; a match that exhausts the JIT
// stack is repeated by the interpreter, so that long inputs slow down instead of failing.
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>

#include "base/error.h"
#include "text/unicode.h"

namespace sx {
namespace {

constexpr std::string_view kSpace =
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr std::string_view kNotSpace =
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x84\\x86-\\x9f\\xa1-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}";
// Alphabetic, marks, decimal digits, connectors. Alphabetic = letters, letter numbers, some marks and circled letters.
// Below U+0100 Oniguruma's table has the other numbers too, superscripts and fractions.
constexpr std::string_view kWord =
    "\\xb2\\xb3\\xb9\\xbc-\\xbe\\p{L}\\p{M}\\p{Nl}\\p{Nd}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{"
    "1f189}";

// \b and \B, in terms of the same word characters: PCRE2 counts every number as one, Oniguruma only decimal digits.
std::string word_boundary(bool at_boundary) {
  const std::string word = "[" + std::string(kWord) + "]";
  const std::string begins = "(?=" + word + ")", does_not_begin = "(?!" + word + ")";
  return "(?:(?<=" + word + ")" + (at_boundary ? does_not_begin : begins) + "|(?<!" + word + ")" +
         (at_boundary ? begins : does_not_begin) + ")";
}

// Rewrites what Oniguruma (Ruby syntax) reads differently from PCRE2. Fails for syntax that has no counterpart.
std::string translate(std::string_view pattern, const std::string& where) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      std::string_view set = escaped == 's' ? kSpace : escaped == 'S' ? kNotSpace : escaped == 'w' ? kWord : "";
      if (!in_class && (escaped == 'b' || escaped == 'B')) {
        out += word_boundary(escaped == 'b');
        continue;
      }
      if (escaped == 'W' && in_class) fail("{}: pattern {}: \\W inside a class is not supported", where, pattern);
      if (escaped == 'W') {
        out += "[^", out += kWord, out += ']';
      } else if (!set.empty()) {
        if (in_class) {
          out += set;
        } else {
          out += '[', out += set, out += ']';
        }
      } else {
        out += c, out += escaped;
      }
      continue;
    }
    if (!in_class && c == '[') {
      in_class = true;
      out += c;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') out += pattern[++i];  // a literal ] in first place
      continue;
    }
    if (in_class && c == '[' && pattern.substr(i, 2) != "[:") {
      fail("{}: pattern {}: nested character classes are not supported", where, pattern);
    }
    if (in_class && c == '[') {  // [:name:]
      const size_t end = pattern.find(":]", i + 2);
      if (end == std::string_view::npos) fail("{}: pattern {}: unterminated [: in a class", where, pattern);
      out += pattern.substr(i, end + 2 - i);
      i = end + 1;
      continue;
    }
    if (in_class && pattern.substr(i, 2) == "&&") {
      fail("{}: pattern {}: intersections of character classes (&&) are not supported", where, pattern);
    }
    if (in_class && c == ']') in_class = false;
    out += c;
  }
  return out;
}

}  // namespace

struct RegexScratch::Impl {
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;  // allocated by the first match that overflows the small default stack
};

RegexScratch::RegexScratch() : impl_(std::make_unique<Impl>()) {
  impl_->data = pcre2_match_data_create(1, nullptr);
  impl_->context = pcre2_match_context_create(nullptr);
  if (!impl_->data || !impl_->context) throw std::bad_alloc();
  pcre2_set_heap_limit(impl_->context, 256 << 10);  // KiB
}

RegexScratch::~RegexScratch() {
  pcre2_match_data_free(impl_->data);
  pcre2_match_context_free(impl_->context);
  if (impl_->stack) pcre2_jit_stack_free(impl_->stack);
}

struct Regex::Impl {
  std::string pattern, where;
  pcre2_code* code = nullptr;
  ~Impl() { pcre2_code_free(code); }
};

Regex::Regex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  // Ruby's ^ and $ always match at line ends.
  impl_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(impl_->pattern.data()), impl_->pattern.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &at, context);
  pcre2_compile_context_free(context);
  if (!impl_->code) {
    PCRE2_UCHAR message[160] = {};
    pcre2_get_error_message(error, message, sizeof message);
    fail("{}: pattern {} does not compile: {} (at byte {})", impl_->where, impl_->pattern,
         reinterpret_cast<const char*>(message), at);
  }
  pcre2_jit_compile(impl_->code, PCRE2_JIT_COMPLETE);  // The interpreter runs where there is no JIT.
}

Regex::Regex(std::string_view pattern, const std::string& where)
    : Regex([&] {
        if (!utf8_is_valid(pattern)) fail("{}: the pattern is not valid UTF-8", where);
        auto impl = std::make_unique<Impl>();
        impl->pattern = translate(pattern, where);
        impl->where = where;
        return impl;
      }()) {}

Regex Regex::literal(std::string_view text, const std::string& where) {
  std::string escaped;
  for (char c : text) {
    const bool plain = static_cast<unsigned char>(c) >= 0x80 || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       (c >= '0' && c <= '9');
    if (plain) {
      escaped += c;
    } else {
      escaped += fmt::format("\\x{{{:x}}}", static_cast<unsigned>(c));
    }
  }
  if (!utf8_is_valid(text)) fail("{}: the pattern is not valid UTF-8", where);
  auto impl = std::make_unique<Impl>();
  impl->pattern = escaped;
  impl->where = where;
  return Regex(std::move(impl));
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

bool Regex::find(std::string_view subject, size_t from, RegexScratch& scratch, Match& match) const {
  RegexScratch::Impl& memory = *scratch.impl_;
  const auto text = reinterpret_cast<PCRE2_SPTR>(subject.empty() ? "" : subject.data());
  auto run = [&](uint32_t options) {
    return pcre2_match(impl_->code, text, subject.size(), from, PCRE2_NO_UTF_CHECK | options, memory.data,
                       memory.context);
  };
  int result = run(0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
    if (!memory.stack) {
      memory.stack = pcre2_jit_stack_create(64 << 10, 16 << 20, nullptr);
      pcre2_jit_stack_assign(memory.context, nullptr, memory.stack);
      result = run(0);
    }
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = run(PCRE2_NO_JIT);
  }
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    PCRE2_UCHAR message[160] = {};
    pcre2_get_error_message(result, message, sizeof message);
    fail("{}: pattern {} cannot be matched against this text: {}", impl_->where, impl_->pattern,
         reinterpret_cast<const char*>(message));
  }
  const PCRE2_SIZE* where = pcre2_get_ovector_pointer(memory.data);
  match = {where[0], where[1]};
  if (match.begin > match.end || match.begin < from) {  // \K in a look-around can move the start.
    fail("{}: pattern {} moves the start of its match; this is not supported", impl_->where, impl_->pattern);
  }
  return true;
}

bool Regex::find_next(std::string_view subject, size_t previous_end, RegexScratch& scratch, Match& match) const {
  const bool first = previous_end == std::string_view::npos;
  size_t from = first ? 0 : previous_end;
  if (from > subject.size()) return false;
  if (!find(subject, from, scratch, match)) return false;
  if (first || match.end != match.begin || match.begin != previous_end) return true;
  if (from == subject.size()) return false;
  return find(subject, from + utf8_step(subject, from).length, scratch, match);
}

}  // namespace sx
