// Canonical normal forms after Unicode Standard Annex 15: decompose, order the marks, compose. Text whose characters
// all lie below U+0300 is already in NFC and is returned as it is.
#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "text/unicode.h"
#include "text/unicode_tables.h"

namespace sx {
namespace {

constexpr char32_t kHangul = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11A7;
constexpr char32_t kLeads = 19, kVowels = 21, kTails = 28, kSyllables = kLeads * kVowels * kTails;

struct Canon {
  struct Parts {
    char32_t first, second;
  };
  std::unordered_map<char32_t, Parts> parts;
  std::unordered_map<uint64_t, char32_t> whole;  // first << 32 | second
  std::unordered_map<char32_t, uint8_t> mark_class;
};

const Canon& canon() {
  static const Canon tables = [] {
    Canon c;
    for (size_t i = 0; i < kDecompositions.size(); i += 3) {
      const char32_t code = kDecompositions[i], first = kDecompositions[i + 1];
      const int32_t second = kDecompositions[i + 2];
      c.parts[code] = {first, static_cast<char32_t>(second < 0 ? -second : second)};
      if (second > 0) c.whole[static_cast<uint64_t>(first) << 32 | static_cast<uint32_t>(second)] = code;
    }
    for (size_t i = 0; i < kCombiningClasses.size(); i += 3) {
      for (int32_t code = kCombiningClasses[i]; code <= kCombiningClasses[i + 1]; ++code) {
        c.mark_class[code] = static_cast<uint8_t>(kCombiningClasses[i + 2]);
      }
    }
    return c;
  }();
  return tables;
}

int mark_class(char32_t code) {
  if (code < 0x300) return 0;
  const auto found = canon().mark_class.find(code);
  return found == canon().mark_class.end() ? 0 : found->second;
}

void decompose(char32_t code, std::vector<char32_t>& out) {
  if (code < 0xC0) return out.push_back(code);
  if (code >= kHangul && code < kHangul + kSyllables) {
    const char32_t index = code - kHangul;
    out.push_back(kLead + index / (kVowels * kTails));
    out.push_back(kVowel + index / kTails % kVowels);
    if (index % kTails) out.push_back(kTail + index % kTails);
    return;
  }
  const auto found = canon().parts.find(code);
  if (found == canon().parts.end()) return out.push_back(code);
  decompose(found->second.first, out);  // the table nests a few levels deep at most
  if (found->second.second) decompose(found->second.second, out);
}

void order_marks(std::vector<char32_t>& text) {
  for (size_t i = 0; i < text.size();) {
    if (mark_class(text[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < text.size() && mark_class(text[end]) != 0) ++end;
    std::stable_sort(text.begin() + i, text.begin() + end,
                     [](char32_t a, char32_t b) { return mark_class(a) < mark_class(b); });
    i = end;
  }
}

// 0 when the pair does not compose.
char32_t compose_pair(char32_t a, char32_t b) {
  if (a >= kLead && a < kLead + kLeads && b >= kVowel && b < kVowel + kVowels) {
    return kHangul + ((a - kLead) * kVowels + (b - kVowel)) * kTails;
  }
  if (a >= kHangul && a < kHangul + kSyllables && (a - kHangul) % kTails == 0 && b > kTail && b < kTail + kTails) {
    return a + (b - kTail);
  }
  const auto found = canon().whole.find(static_cast<uint64_t>(a) << 32 | b);
  return found == canon().whole.end() ? 0 : found->second;
}

void compose(std::vector<char32_t>& text) {
  std::vector<char32_t> out;
  out.reserve(text.size());
  size_t starter = SIZE_MAX;  // index in out of the last character of class 0
  int last_class = -1;        // class of the last character kept after the starter; -1: none
  for (char32_t code : text) {
    const int its_class = mark_class(code);
    if (starter != SIZE_MAX && (last_class == -1 || last_class < its_class)) {
      if (const char32_t whole = compose_pair(out[starter], code)) {
        out[starter] = whole;
        continue;
      }
    }
    out.push_back(code);
    if (its_class == 0) {
      starter = out.size() - 1;
      last_class = -1;
    } else {
      last_class = its_class;
    }
  }
  text = std::move(out);
}

}  // namespace

std::string normalize(std::string_view text, NormalForm form) {
  std::vector<char32_t> codes;
  codes.reserve(text.size());
  bool simple = true;
  const char32_t safe = form == NormalForm::kNfc ? 0x300 : 0xC0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    codes.push_back(step.code);
    simple = simple && step.code < safe;
    at += step.length;
  }
  if (simple) return std::string(text);
  std::vector<char32_t> whole;
  whole.reserve(codes.size());
  for (char32_t code : codes) decompose(code, whole);
  order_marks(whole);
  if (form == NormalForm::kNfc) compose(whole);
  std::string out;
  out.reserve(text.size());
  for (char32_t code : whole) utf8_append(out, code);
  return out;
}

std::string lower_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    at += step.length;
    const int32_t code = static_cast<int32_t>(step.code);
    if (code == 0x130) {  // the only letter whose lower case is two characters
      out += "i\xCC\x87";
      continue;
    }
    size_t low = 0, high = kLowerCase.size() / 4;  // the last range that starts at or before code
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (kLowerCase[middle * 4] <= code) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    int32_t lowered = code;
    if (low > 0) {
      const auto range = kLowerCase.subspan((low - 1) * 4, 4);
      if (code <= range[1] && (code - range[0]) % range[2] == 0) lowered = code + range[3];
    }
    utf8_append(out, static_cast<char32_t>(lowered));
  }
  return out;
}

}  // namespace sx
