// UTF-8 stepping and lookups in the generated tables.
#include "text/jinja/unicode.h"

#include <algorithm>
#include <iterator>

namespace sx::jinja {

namespace {

struct Range {
  uint32_t first, last;
};
// Characters first, first + step, ..., last map to themselves plus delta.
struct Run {
  uint32_t first, last;
  int step, delta;
};
struct Long {
  uint32_t from;
  uint32_t to[3];
};

#include "text/jinja/unicode_case.inc"
#include "text/jinja/unicode_classes.inc"

template <size_t N>
bool contains(const Range (&table)[N], uint32_t c) {
  const Range* end = std::end(table);
  const Range* r = std::lower_bound(std::begin(table), end, c, [](const Range& a, uint32_t v) { return a.last < v; });
  return r != end && r->first <= c;
}

template <size_t N, size_t M>
void append_mapped(const Run (&runs)[N], const Long (&longs)[M], uint32_t c, std::string& out) {
  const Long* l = std::lower_bound(std::begin(longs), std::end(longs), c,
                                   [](const Long& a, uint32_t v) { return a.from < v; });
  if (l != std::end(longs) && l->from == c) {
    for (uint32_t to : l->to)
      if (to != 0) encode(to, out);
    return;
  }
  const Run* r = std::lower_bound(std::begin(runs), std::end(runs), c,
                                  [](const Run& a, uint32_t v) { return a.last < v; });
  if (r != std::end(runs) && r->first <= c && (c - r->first) % static_cast<uint32_t>(r->step) == 0)
    c = static_cast<uint32_t>(static_cast<int64_t>(c) + r->delta);
  encode(c, out);
}

}  // namespace

uint32_t decode_at(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const uint32_t lead = byte(at);
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  if (lead < 0x80) {
    ++at;
    return lead;
  }
  if (lead >= 0xC2 && lead < 0xE0 && continues(at + 1)) {
    const uint32_t c = (lead & 0x1F) << 6 | (byte(at + 1) & 0x3F);
    at += 2;
    return c;
  }
  if (lead >= 0xE0 && lead < 0xF0 && continues(at + 1) && continues(at + 2)) {
    const uint32_t c = (lead & 0x0F) << 12 | (byte(at + 1) & 0x3F) << 6 | (byte(at + 2) & 0x3F);
    if (c >= 0x800 && (c < 0xD800 || c > 0xDFFF)) {
      at += 3;
      return c;
    }
  }
  if (lead >= 0xF0 && lead < 0xF5 && continues(at + 1) && continues(at + 2) && continues(at + 3)) {
    const uint32_t c =
        (lead & 0x07) << 18 | (byte(at + 1) & 0x3F) << 12 | (byte(at + 2) & 0x3F) << 6 | (byte(at + 3) & 0x3F);
    if (c >= 0x10000 && c < 0x110000) {
      at += 4;
      return c;
    }
  }
  ++at;
  return 0xDC00 + lead;
}

void encode(uint32_t c, std::string& out) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c >= 0xDC80 && c <= 0xDCFF) {
    put(c - 0xDC00);  // a stray byte on its way back
  } else if (c < 0x10000) {
    if (c >= 0xD800 && c <= 0xDFFF) c = 0xFFFD;
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

size_t char_bytes(std::string_view text, size_t at) {
  size_t next = at;
  decode_at(text, next);
  return next - at;
}

size_t count_chars(std::string_view text) {
  size_t n = 0;
  for (size_t at = 0; at < text.size(); ++n) decode_at(text, at);
  return n;
}

std::vector<uint32_t> decode_all(std::string_view text) {
  std::vector<uint32_t> chars;
  chars.reserve(text.size());
  for (size_t at = 0; at < text.size();) chars.push_back(decode_at(text, at));
  return chars;
}

std::string encode_all(const std::vector<uint32_t>& chars) {
  std::string out;
  out.reserve(chars.size());
  for (uint32_t c : chars) encode(c, out);
  return out;
}

bool is_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}
bool is_alpha(uint32_t c) { return contains(kAlpha, c); }
bool is_digit(uint32_t c) { return contains(kDigit, c); }
bool is_decimal(uint32_t c) { return contains(kDecimal, c); }
bool is_numeric(uint32_t c) { return contains(kNumeric, c); }
bool is_lower(uint32_t c) { return contains(kLower, c); }
bool is_upper(uint32_t c) { return contains(kUpper, c); }
bool is_title(uint32_t c) { return contains(kTitle, c); }
bool is_printable(uint32_t c) { return !(c >= 0xD800 && c <= 0xDFFF) && !contains(kUnprintable, c); }

void append_upper(uint32_t c, std::string& out) { append_mapped(kUpperRuns, kUpperLong, c, out); }
void append_lower(uint32_t c, std::string& out) { append_mapped(kLowerRuns, kLowerLong, c, out); }
void append_title(uint32_t c, std::string& out) { append_mapped(kTitleRuns, kTitleLong, c, out); }

std::string to_upper(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) append_upper(decode_at(text, at), out);
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) append_lower(decode_at(text, at), out);
  return out;
}

std::string_view strip(std::string_view text, bool left, bool right, const std::string* chars) {
  std::vector<uint32_t> set;
  if (chars != nullptr) set = decode_all(*chars);
  const auto drop = [&](uint32_t c) {
    return chars == nullptr ? is_space(c) : std::find(set.begin(), set.end(), c) != set.end();
  };
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    size_t next = begin;
    if (!drop(decode_at(text, next))) break;
    begin = next;
  }
  while (right && begin < end) {
    // The last character starts at most three bytes before the last one; a shorter decoding means a stray byte.
    size_t start = end - 1;
    for (size_t back = 1; back <= 4 && back <= end - begin; ++back)
      if (char_bytes(text.substr(0, end), end - back) == back) start = end - back;
    size_t next = start;
    if (!drop(decode_at(text.substr(0, end), next))) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

}  // namespace sx::jinja
