// UTF-8 decoding follows table 3-7 of the Unicode standard: overlong forms, surrogates and values above 10FFFF are
// malformed. utf8proc supplies the character data: categories, simple case mapping, case folding, normal forms.
#include "text/unicode.h"

#include <utf8proc.h>

#include <vector>

#include "base/error.h"

namespace sx {

Utf8Step utf8_step(std::string_view text, size_t at) {
  auto byte = [&](size_t i) -> int { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : -1; };
  const int first = byte(0);
  if (first < 0x80) return {static_cast<char32_t>(first), 1, true, false};
  int need = 0, low = 0x80, high = 0xBF;  // range of the second byte
  char32_t code = 0;
  if (first >= 0xC2 && first <= 0xDF) {
    need = 1, code = first & 0x1F;
  } else if (first >= 0xE0 && first <= 0xEF) {
    need = 2, code = first & 0x0F;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    need = 3, code = first & 0x07;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  } else {
    return {0xFFFD, 1, false, false};
  }
  for (int i = 1; i <= need; ++i) {
    const int next = byte(i);
    if (next < low || next > high) return {0xFFFD, static_cast<uint8_t>(i), false, next < 0};
    code = code << 6 | (next & 0x3F);
    low = 0x80, high = 0xBF;
  }
  return {code, static_cast<uint8_t>(need + 1), true, false};
}

bool utf8_is_valid(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = utf8_step(text, at);
    if (!step.valid) return false;
    at += step.length;
  }
  return true;
}

std::string utf8_lossy(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    out += step.valid ? text.substr(at, step.length) : kReplacementCharacter;
    at += step.length;
  }
  return out;
}

void utf8_append(std::string& out, char32_t code) {
  auto put = [&](char32_t value) { out.push_back(static_cast<char>(value)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6), put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 0x3F)), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  }
}

size_t utf8_open_tail(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const unsigned char byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return 0;
    if (byte < 0xC0) continue;  // This is a continuation byte: its leader stands further left.
    return utf8_step(text, text.size() - back).truncated ? back : 0;
  }
  return 0;
}

bool is_white_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

size_t white_space_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = utf8_step(text, at);
    if (!step.valid || !is_white_space(step.code)) break;
    at += step.length;
  }
  return at;
}

size_t white_space_suffix(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && end - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    const Utf8Step step = utf8_step(text.substr(0, end), begin);
    if (!step.valid || begin + step.length != end || !is_white_space(step.code)) break;
    end = begin;
  }
  return text.size() - end;
}

namespace {

constexpr char32_t kDottedCapitalI = 0x130, kSharpS = 0xDF, kApostropheN = 0x149;
constexpr char32_t kIota = 0x3B9, kIotaBelow = 0x345;
constexpr char32_t kJungseongOYae = 0x11A7;

utf8proc_int32_t raw(char32_t code) { return static_cast<utf8proc_int32_t>(code); }
utf8proc_category_t category_of(char32_t code) { return utf8proc_category(raw(code)); }

// utf8proc maps case one character to one. A character with a longer upper case is recognised by its case folding,
// which is then longer than one character too: its upper case is that of each part of the folding.
struct Folding {
  explicit Folding(char32_t code) {
    int boundary = 0;  // utf8proc keeps its state of grapheme breaks here; none are asked for.
    size = utf8proc_decompose_char(raw(code), parts, 4, UTF8PROC_CASEFOLD, &boundary);
    expands = size > 1 && category_of(code) != UTF8PROC_CATEGORY_LU;
  }
  utf8proc_int32_t parts[4];
  utf8proc_ssize_t size;
  bool expands;
};

// Normalises one stretch of text in a single call of utf8proc.
void append_normalized(std::string& out, std::string_view text, utf8proc_option_t options) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto size = static_cast<utf8proc_ssize_t>(text.size());
  // Canonical decomposition makes less than two code points of a byte; utf8proc_reencode writes one more element.
  std::vector<utf8proc_int32_t> codes(2 * text.size() + 1);
  const auto room = [&] { return static_cast<utf8proc_ssize_t>(codes.size()) - 1; };
  utf8proc_ssize_t count = utf8proc_decompose(bytes, size, codes.data(), room(), options);
  if (count > room()) {
    codes.resize(static_cast<size_t>(count) + 1);
    count = utf8proc_decompose(bytes, size, codes.data(), room(), options);
  }
  if (count >= 0) count = utf8proc_reencode(codes.data(), count, options);
  if (count < 0) fail("a text cannot be normalised: {}", utf8proc_errmsg(count));
  out.append(reinterpret_cast<const char*>(codes.data()), static_cast<size_t>(count));
}

template <void (*kAppend)(std::string&, char32_t)>
std::string map_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    if (step.valid) kAppend(out, step.code);
    else out += text.substr(at, step.length);
    at += step.length;
  }
  return out;
}

}  // namespace

bool is_alphanumeric(char32_t code) {
  const utf8proc_category_t category = category_of(code);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) ||
         (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

bool is_cased(char32_t code) {
  return utf8proc_islower(raw(code)) || utf8proc_isupper(raw(code)) || category_of(code) == UTF8PROC_CATEGORY_LT;
}

bool is_printable(char32_t code) {
  return code == ' ' || (category_of(code) != UTF8PROC_CATEGORY_CN && category_of(code) < UTF8PROC_CATEGORY_ZS);
}

// Most text needs no work: a character below `limit` is its own normal form and composes with nothing before it. Only
// stretches of other characters, each with the one character before it, are given to utf8proc.
std::string normalize(std::string_view text, NormalForm form) {
  const bool composed = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const char32_t limit = compatible ? 0xA0 : composed ? 0x300 : 0xC0;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compatible ? UTF8PROC_COMPAT : 0));
  std::string out;
  out.reserve(text.size());
  size_t done = 0;    // bytes of text that out accounts for
  size_t last = 0;    // where the last character that needs no work begins
  bool open = false;  // whether a stretch that needs work has begun, at `done`
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    // utf8proc 2.8 loses U+11A7 behind a Hangul syllable. It neither decomposes nor composes: it may end a stretch.
    if (step.code < limit || step.code == kJungseongOYae) {
      if (open) {
        append_normalized(out, text.substr(done, at - done), options);
        done = at;
        open = false;
      }
      last = at;
    } else if (!open) {
      out += text.substr(done, last - done);
      done = last, open = true;
    }
    at += step.length;
  }
  if (open) append_normalized(out, text.substr(done), options);
  else out += text.substr(done);
  return out;
}

void append_lower(std::string& out, char32_t code) {
  if (code == kDottedCapitalI) out += "i\xCC\x87";  // No other character has a lower case of two.
  else utf8_append(out, static_cast<char32_t>(utf8proc_tolower(raw(code))));
}

void append_upper(std::string& out, char32_t code) {
  const auto upper = [&](utf8proc_int32_t c) { utf8_append(out, static_cast<char32_t>(utf8proc_toupper(c))); };
  if (code < kSharpS) return upper(raw(code));
  const Folding folding(code);
  if (!folding.expands) return upper(raw(code));
  for (utf8proc_ssize_t i = 0; i < folding.size; ++i) upper(folding.parts[i]);
}

void append_title(std::string& out, char32_t code) {
  const auto title = static_cast<char32_t>(utf8proc_totitle(raw(code)));
  if (code < kSharpS || (title != code && code != kSharpS)) return utf8_append(out, title);
  const Folding folding(code);
  if (!folding.expands || category_of(code) == UTF8PROC_CATEGORY_LT) return utf8_append(out, code);
  if (code == kApostropheN) return append_upper(out, code);  // Its first part is an apostrophe.
  utf8_append(out, static_cast<char32_t>(utf8proc_totitle(folding.parts[0])));
  for (utf8proc_ssize_t i = 1; i < folding.size; ++i) {
    const auto part = static_cast<char32_t>(folding.parts[i]);
    utf8_append(out, part == kIota ? kIotaBelow : part);  // A Greek capital keeps its iota below.
  }
}

std::string lower_case(std::string_view text) { return map_case<append_lower>(text); }
std::string upper_case(std::string_view text) { return map_case<append_upper>(text); }

}  // namespace sx
