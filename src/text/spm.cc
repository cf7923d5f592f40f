// Keeps a heap over a linked list of symbols: n log n steps for a text of n characters, which is a single word here.
#include "text/spm.h"

#include <algorithm>

#include "text/unicode.h"

namespace sx {
namespace {

// Orders a max-heap so that its top is the best score, then the leftmost.
bool worse(const WordScratch::Candidate& a, const WordScratch::Candidate& b) {
  return a.score != b.score ? a.score < b.score : a.left > b.left;
}

}  // namespace

Spm::Spm(const std::unordered_map<std::string_view, Token>& lookup, std::vector<float> scores,
         const std::array<Token, 256>& byte_token, Token unk, bool fuse_unk)
    : lookup_(lookup), scores_(std::move(scores)), byte_token_(byte_token), unk_(unk), fuse_unk_(fuse_unk) {
  for (const auto& [text, token] : lookup_) longest_ = std::max(longest_, text.size());
}

bool Spm::candidate(std::string_view word, const WordScratch& scratch, int left, WordScratch::Candidate& out) const {
  const int right = left < 0 ? -1 : scratch.symbols[left].next;
  if (right < 0) return false;
  const uint32_t length = scratch.symbols[left].length + scratch.symbols[right].length;
  if (length > longest_) return false;
  const auto found = lookup_.find(word.substr(scratch.symbols[left].begin, length));
  if (found == lookup_.end()) return false;
  out = {scores_[found->second], 0, left, found->second, kNoToken, length};
  return true;
}

void Spm::encode(std::string_view word, WordScratch& scratch, std::vector<Token>& out) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.clear();
  for (size_t at = 0; at < word.size();) {
    const uint32_t length = utf8_step(word, at).length;
    const int index = static_cast<int>(symbols.size());
    const auto found = lookup_.find(word.substr(at, length));
    const Token token = found == lookup_.end() ? kNoToken : found->second;
    symbols.push_back({token, index - 1, index + 1, static_cast<uint32_t>(at), length});
    at += length;
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  WordScratch::Candidate c{};
  heap.clear();
  for (int i = 0; i + 1 < static_cast<int>(symbols.size()); ++i) {
    if (candidate(word, scratch, i, c)) heap.push_back(c);
  }
  std::make_heap(heap.begin(), heap.end(), worse);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), worse);
    const WordScratch::Candidate top = heap.back();
    heap.pop_back();
    WordScratch::Symbol& left = symbols[top.left];
    // The entry is stale when one side has grown or was merged away. Lengths only grow: equal lengths mean the same
    // pair.
    if (left.length == 0 || left.next < 0 || left.length + symbols[left.next].length != top.length) continue;
    WordScratch::Symbol& right = symbols[left.next];
    left.token = top.left_token;
    left.length = top.length;
    right.length = 0;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].previous = top.left;
    for (int at : {left.previous, top.left}) {
      if (!candidate(word, scratch, at, c)) continue;
      heap.push_back(c);
      std::push_heap(heap.begin(), heap.end(), worse);
    }
  }
  bool behind_unknown = false;
  for (int i = 0; i >= 0; i = symbols[i].next) {
    const WordScratch::Symbol& symbol = symbols[i];
    const bool fuse = fuse_unk_ && behind_unknown;
    behind_unknown = false;
    if (symbol.token != kNoToken) {
      out.push_back(symbol.token);
      continue;
    }
    const std::string_view bytes = word.substr(symbol.begin, symbol.length);
    const bool all = std::all_of(bytes.begin(), bytes.end(),
                                 [&](char b) { return byte_token_[static_cast<unsigned char>(b)] != kNoToken; });
    if (all) {
      for (char b : bytes) out.push_back(byte_token_[static_cast<unsigned char>(b)]);
    } else if (unk_ != kNoToken) {
      if (!fuse) out.push_back(unk_);
      behind_unknown = true;
    }
  }
}

}  // namespace sx
