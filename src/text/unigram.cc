// A forward pass keeps the best cut that ends at each byte offset; a backward pass reads the tokens off.
#include "text/unigram.h"

#include <algorithm>

#include "text/unicode.h"

namespace sx {
namespace {

constexpr double kUnknownPenalty = 10.0;  // below the worst token of the vocabulary

struct Node {
  double score = 0.0;
  size_t begin = SIZE_MAX;  // start of the token that ends here; SIZE_MAX if no cut ends here
  Token token = kNoToken;
};

}  // namespace

Unigram::Unigram(const std::unordered_map<std::string_view, Token>& lookup, std::vector<double> scores, double least,
                 const std::array<Token, 256>& byte_token, Token unk, bool in_float)
    : lookup_(lookup),
      scores_(std::move(scores)),
      unknown_score_(least - kUnknownPenalty),
      byte_token_(byte_token),
      unk_(unk),
      in_float_(in_float) {
  for (const auto& [text, token] : lookup_) trie_.insert(text, token);
}

void Unigram::encode(std::string_view word, WordScratch&, std::vector<Token>& out) const {
  std::vector<Node> nodes(word.size() + 1);
  auto offer = [&](size_t begin, size_t end, double own, Token token) {
    const double sum = nodes[begin].score + own, score = in_float_ ? static_cast<float>(sum) : sum;
    if (nodes[end].begin == SIZE_MAX || score > nodes[end].score) nodes[end] = {score, begin, token};
  };
  for (size_t at = 0; at < word.size();) {
    const size_t character = utf8_step(word, at).length;
    bool covered = false;  // some token is exactly this character
    uint32_t trie_node = ByteTrie::kRoot;
    for (size_t end = at; end < word.size();) {
      trie_node = trie_.child(trie_node, static_cast<unsigned char>(word[end++]));
      if (trie_node == ByteTrie::kNone) break;
      const Token token = trie_.value(trie_node);
      if (token < 0) continue;
      offer(at, end, scores_[token], token);
      covered = covered || end - at == character;
    }
    if (!covered) offer(at, at + character, unknown_score_, unk_);
    at += character;
  }
  std::vector<std::pair<size_t, size_t>> pieces;  // from the end; neighbouring unknown ones fused
  bool fusing = false;
  for (size_t end = word.size(); end > 0; end = nodes[end].begin) {
    const bool unknown = nodes[end].token == unk_;
    if (unknown && fusing) {
      pieces.back().first = nodes[end].begin;
    } else {
      pieces.push_back({nodes[end].begin, end});
    }
    fusing = unknown;
  }
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    emit(word.substr(piece->first, piece->second - piece->first), out);
  }
}

void Unigram::emit(std::string_view text, std::vector<Token>& out) const {
  const auto found = lookup_.find(text);
  if (found != lookup_.end()) return out.push_back(found->second);
  const bool bytes = std::all_of(text.begin(), text.end(),
                                 [&](char c) { return byte_token_[static_cast<unsigned char>(c)] != kNoToken; });
  if (bytes) {
    for (char c : text) out.push_back(byte_token_[static_cast<unsigned char>(c)]);
  } else if (unk_ != kNoToken) {
    out.push_back(unk_);
  }
}

}  // namespace sx
