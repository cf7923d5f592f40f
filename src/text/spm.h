// SentencePiece's BPE as GGUF stores it: no merge list, but a score per token; the adjacent pair whose concatenation
// is the best-scored token merges first. Characters without a token fall back to byte tokens.
#pragma once
#include <array>
#include <unordered_map>
#include <vector>

#include "text/vocabulary.h"

namespace sx {

class Spm : public WordModel {
 public:
  // lookup: the tokens that merging may form (no control, unknown or byte tokens); scores: [tokens]. lookup must
  // outlive this object. byte_token: kNoToken where the vocabulary has no token for a byte; unk stands in for it, once
  // for a run of such characters with fuse_unk.
  Spm(const std::unordered_map<std::string_view, Token>& lookup, std::vector<float> scores,
      const std::array<Token, 256>& byte_token, Token unk, bool fuse_unk = false);
  void encode(std::string_view word, WordScratch& scratch, std::vector<Token>& out) const override;

 private:
  bool candidate(std::string_view word, const WordScratch& scratch, int left, WordScratch::Candidate& out) const;

  const std::unordered_map<std::string_view, Token>& lookup_;
  std::vector<float> scores_;
  std::array<Token, 256> byte_token_;
  Token unk_;
  bool fuse_unk_;
  size_t longest_ = 0;  // bytes
};

}  // namespace sx
