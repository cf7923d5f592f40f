// Three merge loops give the same result. Short words scan an array of ranks, long words keep a heap over a linked
// list. Huge words (a megabyte without a space is one word) keep a list of positions per rank, which takes a seventh of
// the heap's time and less than half its memory.
#include "text/bpe.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "text/pretokenizer.h"
#include "text/unicode.h"

namespace sx {
namespace {

constexpr uint64_t kNoKey = ~uint64_t{0};
constexpr uint32_t kNoRank = ~uint32_t{0};
constexpr size_t kShortWord = 32;   // in symbols; the heap is faster than the quadratic scan beyond it
constexpr size_t kHugeWord = 4096;  // in symbols; one list per rank is faster than the heap beyond it

uint64_t pair_key(Token left, Token right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}
size_t hash_key(uint64_t key) {
  key ^= key >> 29;
  key *= 0x9E3779B97F4A7C15ull;
  return static_cast<size_t>(key >> 20);
}

// Orders a max-heap so that its top is the lowest rank, then the leftmost.
bool later(const WordScratch::Candidate& a, const WordScratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

}  // namespace

Bpe::Bpe(const std::unordered_map<std::string_view, Token>& lookup, const std::vector<Merge>& merges,
         BpeOptions options)
    : lookup_(lookup), options_(std::move(options)) {
  for (const auto& [text, token] : lookup_) longest_ = std::max(longest_, text.size());
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_token_[byte] =
        this->lookup(options_.byte_level ? byte_alphabet_encode({&c, 1}) : fmt::format("<0x{:02X}>", byte));
  }
  plain_bytes_ = options_.byte_level && options_.continuing_prefix.empty() && options_.end_suffix.empty();
  size_t capacity = 16;
  while (capacity < merges.size() * 2) capacity *= 2;
  slots_.assign(capacity, Slot{kNoKey, kNoRank, kNoToken});
  uint32_t rank = 0;
  for (const Merge& merge : merges) {
    const uint64_t key = pair_key(merge.left, merge.right);
    size_t at = hash_key(key) & (capacity - 1);
    while (slots_[at].key != kNoKey && slots_[at].key != key) at = (at + 1) & (capacity - 1);
    slots_[at] = {key, rank++, merge.result};  // For a pair given twice the later rank counts.
  }
  ranks_ = rank;
  std::unordered_map<Token, uint32_t> last;  // rank of the last merge that makes a token
  for (const Slot& slot : slots_) {
    if (slot.key == kNoKey) continue;
    uint32_t& made = last.try_emplace(slot.result, slot.rank).first->second;
    made = std::max(made, slot.rank);
  }
  for (const Slot& slot : slots_) {
    if (slot.key == kNoKey) continue;
    for (const Token part : {static_cast<Token>(slot.key >> 32), static_cast<Token>(slot.key & 0xFFFFFFFF)}) {
      const auto made = last.find(part);
      ordered_ = ordered_ && (made == last.end() || made->second < slot.rank);
    }
  }
}

const Bpe::Slot* Bpe::find(Token left, Token right) const {
  const uint64_t key = pair_key(left, right);
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash_key(key) & mask; slots_[at].key != kNoKey; at = (at + 1) & mask) {
    if (slots_[at].key == key) return &slots_[at];
  }
  return nullptr;
}

Token Bpe::lookup(std::string_view text) const {
  const auto found = lookup_.find(text);
  return found == lookup_.end() ? kNoToken : found->second;
}

void Bpe::first_symbols(std::string_view word, std::vector<Token>& tokens) const {
  tokens.clear();
  if (plain_bytes_) {
    for (char c : word) {
      tokens.push_back(byte_token_[static_cast<unsigned char>(c)]);
      if (tokens.back() == kNoToken) break;
    }
    if (tokens.back() != kNoToken) return;
    tokens.clear();
  }
  std::string mapped;  // the word in GPT-2's alphabet, looked up by character where bytes alone do not suffice
  if (options_.byte_level) word = mapped = byte_alphabet_encode(word);
  bool unknown = false;  // The last character was unknown; the next one may join it in one unk token.
  std::string spelled;
  for (size_t at = 0; at < word.size();) {
    const size_t length = utf8_step(word, at).length;
    std::string_view character = word.substr(at, length);
    const bool first = at == 0, last = at + length == word.size();
    if ((!first && !options_.continuing_prefix.empty()) || (last && !options_.end_suffix.empty())) {
      spelled = first ? "" : options_.continuing_prefix;
      spelled += character;
      if (last) spelled += options_.end_suffix;
      character = spelled;
    }
    at += length;
    const Token token = lookup(character);
    if (token != kNoToken) {
      if (unknown) tokens.push_back(options_.unk);
      unknown = false;
      tokens.push_back(token);
      continue;
    }
    if (options_.byte_fallback && !options_.byte_level && std::all_of(character.begin(), character.end(), [&](char c) {
          return byte_token_[static_cast<unsigned char>(c)] != kNoToken;
        })) {
      for (char c : character) tokens.push_back(byte_token_[static_cast<unsigned char>(c)]);
      continue;
    }
    if (options_.unk == kNoToken) continue;
    if (unknown && !options_.fuse_unk) tokens.push_back(options_.unk);
    unknown = true;
  }
  if (unknown) tokens.push_back(options_.unk);
}

void Bpe::encode(std::string_view word, WordScratch& scratch, std::vector<Token>& out) const {
  if (word.empty()) return;
  if (options_.ignore_merges && word.size() <= longest_) {
    const Token token = lookup(options_.byte_level ? byte_alphabet_encode(word) : std::string(word));
    if (token != kNoToken) {
      out.push_back(token);
      return;
    }
  }
  first_symbols(word, scratch.tokens);
  if (scratch.tokens.size() < 2) {
    out.insert(out.end(), scratch.tokens.begin(), scratch.tokens.end());
  } else if (scratch.tokens.size() <= kShortWord) {
    merge_short(scratch, out);
  } else if (scratch.tokens.size() <= kHugeWord || !ordered_) {
    merge_long(scratch, out);
  } else {
    merge_huge(scratch, out);
  }
}

void Bpe::merge_short(WordScratch& scratch, std::vector<Token>& out) const {
  std::vector<Token>& tokens = scratch.tokens;
  std::vector<uint32_t>& ranks = scratch.ranks;  // of the pair (i, i + 1)
  auto rank_of = [&](size_t i) {
    const Slot* slot = find(tokens[i], tokens[i + 1]);
    return slot ? slot->rank : kNoRank;
  };
  ranks.resize(tokens.size() - 1);
  for (size_t i = 0; i + 1 < tokens.size(); ++i) ranks[i] = rank_of(i);
  while (!ranks.empty()) {
    const auto best = std::min_element(ranks.begin(), ranks.end());  // the leftmost of equals
    if (*best == kNoRank) break;
    const size_t i = best - ranks.begin();
    tokens[i] = find(tokens[i], tokens[i + 1])->result;
    tokens.erase(tokens.begin() + i + 1);
    ranks.erase(best);
    if (i < ranks.size()) ranks[i] = rank_of(i);
    if (i > 0) ranks[i - 1] = rank_of(i - 1);
  }
  out.insert(out.end(), tokens.begin(), tokens.end());
}

void Bpe::merge_long(WordScratch& scratch, std::vector<Token>& out) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  const int count = static_cast<int>(scratch.tokens.size());
  symbols.resize(count);
  for (int i = 0; i < count; ++i) symbols[i] = {scratch.tokens[i], i - 1, i + 1 < count ? i + 1 : -1, 0, 0};
  auto candidate = [&](int left, WordScratch::Candidate& c) {
    const int right = left < 0 ? -1 : symbols[left].next;
    if (right < 0) return false;
    const Slot* slot = find(symbols[left].token, symbols[right].token);
    if (!slot) return false;
    c = {0.0f, slot->rank, left, symbols[left].token, symbols[right].token, 0};
    return true;
  };
  WordScratch::Candidate c{};
  heap.clear();
  for (int i = 0; i + 1 < count; ++i) {
    if (candidate(i, c)) heap.push_back(c);
  }
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const WordScratch::Candidate top = heap.back();
    heap.pop_back();
    WordScratch::Symbol& left = symbols[top.left];
    // The entry is stale when either side has been merged since: another pair stands at this position.
    if (left.token != top.left_token || left.next < 0 || symbols[left.next].token != top.right_token) continue;
    WordScratch::Symbol& right = symbols[left.next];
    left.token = find(top.left_token, top.right_token)->result;
    right.token = kNoToken;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].previous = top.left;
    for (int at : {left.previous, top.left}) {
      if (!candidate(at, c)) continue;
      heap.push_back(c);
      std::push_heap(heap.begin(), heap.end(), later);
    }
  }
  for (int i = 0; i >= 0; i = symbols[i].next) out.push_back(symbols[i].token);
}

// A merge only creates pairs of later ranks, so the list of a rank is complete when that rank is processed.
void Bpe::merge_huge(WordScratch& scratch, std::vector<Token>& out) const {
  auto& links = scratch.links;
  auto& places = scratch.places;
  std::vector<Token>& tokens = scratch.tokens;
  std::vector<uint32_t>& waiting = scratch.ranks;  // a heap of the ranks whose lists are not empty, the lowest on top
  const int count = static_cast<int>(tokens.size());
  links.resize(count);
  for (int i = 0; i < count; ++i) links[i] = {i - 1, i + 1 < count ? i + 1 : -1};
  places.resize(ranks_);
  waiting.clear();
  auto offer = [&](int left) {
    const int right = left < 0 ? -1 : links[left].next;
    const Slot* slot = right < 0 ? nullptr : find(tokens[left], tokens[right]);
    if (!slot) return;
    if (places[slot->rank].empty()) {
      waiting.push_back(slot->rank);
      std::push_heap(waiting.begin(), waiting.end(), std::greater<>());
    }
    places[slot->rank].push_back(left);
  };
  for (int i = 0; i + 1 < count; ++i) offer(i);
  while (!waiting.empty()) {
    std::pop_heap(waiting.begin(), waiting.end(), std::greater<>());
    const uint32_t rank = waiting.back();
    waiting.pop_back();
    std::vector<int> lefts = std::move(places[rank]);
    places[rank] = {};
    if (!std::is_sorted(lefts.begin(), lefts.end())) std::sort(lefts.begin(), lefts.end());
    for (const int left : lefts) {
      const int right = tokens[left] == kNoToken ? -1 : links[left].next;
      const Slot* slot = right < 0 ? nullptr : find(tokens[left], tokens[right]);
      if (!slot || slot->rank != rank) continue;  // Either side has been merged since.
      tokens[left] = slot->result;
      tokens[right] = kNoToken;
      links[left].next = links[right].next;
      if (links[left].next >= 0) links[links[left].next].previous = left;
      offer(links[left].previous);
      offer(left);
    }
  }
  for (int i = 0; i >= 0; i = links[i].next) out.push_back(tokens[i]);
}

}  // namespace sx
