// UTF-8 decoding after table 3-7 of the Unicode standard: overlong forms, surrogates and values above 10FFFF are
// malformed.
#include "text/unicode.h"

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
    if (byte < 0xC0) continue;  // a continuation byte: look further left for its leader
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

}  // namespace sx
