// Walks a byte trie from every position whose byte can start an added token.
#include "text/special.h"

#include <algorithm>

#include "text/unicode.h"

namespace sx {
namespace {

bool word_at_start(std::string_view text, RegexScratch& scratch) {
  static const Regex pattern(R"(\A(?![\xb2\xb3\xb9\xbc-\xbe])\w)", "added token");  // not Oniguruma's words
  Regex::Match match{};
  return !text.empty() && pattern.find(text.substr(0, utf8_step(text, 0).length), 0, scratch, match);
}

bool word_at_end(std::string_view text, RegexScratch& scratch) {
  size_t begin = text.size();
  while (begin > 0 && (static_cast<unsigned char>(text[--begin]) & 0xC0) == 0x80) {}
  return word_at_start(text.substr(begin), scratch);
}

}  // namespace

void AddedTokens::add(AddedToken token) {
  if (token.text.empty()) return;
  trie_.insert(token.text, static_cast<int32_t>(tokens_.size()));
  tokens_.push_back(std::move(token));
}

int AddedTokens::longest_at(std::string_view text, size_t at) const {
  int best = -1;
  uint32_t node = ByteTrie::kRoot;
  for (size_t i = at; i < text.size(); ++i) {
    node = trie_.child(node, static_cast<unsigned char>(text[i]));
    if (node == ByteTrie::kNone) break;
    if (trie_.value(node) >= 0) best = trie_.value(node);
  }
  return best;
}

std::vector<AddedTokens::Part> AddedTokens::split(std::string_view text, bool parse_control,
                                                  RegexScratch& scratch) const {
  std::vector<Part> parts;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const int index = tokens_.empty() ? -1 : longest_at(text, at);
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& found = tokens_[index];
    size_t begin = at, end = at + found.text.size();
    at = end;  // The text of a match is not searched again, even if the match does not count.
    if (found.control && !parse_control) continue;
    if (found.single_word &&
        (word_at_end(text.substr(0, begin), scratch) || word_at_start(text.substr(end), scratch))) {
      continue;
    }
    if (found.left_strip) begin = std::max(done, begin - white_space_suffix(text.substr(0, begin)));
    if (found.right_strip) end += white_space_prefix(text.substr(end));
    if (done < begin) parts.push_back({text.substr(done, begin - done), kNoToken});
    parts.push_back({text.substr(begin, end - begin), found.token});
    done = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), kNoToken});
  return parts;
}

}  // namespace sx
