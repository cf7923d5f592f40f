// SentencePiece's BPE as GGUF stores it. It has no list of merges but a score per token: the adjacent pair whose
// concatenation is the best-scored token merges first. Characters without a token fall back to byte tokens.
#pragma once
#include <array>
#include <unordered_map>
#include <vector>

#include "text/vocabulary.h"

namespace sx {

class Spm : public WordModel {
 public:
  // `lookup` holds the tokens that merging may form (no control, unknown or byte tokens) and must outlive this object;
  // `scores` is [tokens]. `byte_token` is kNoToken for bytes without a token: unk stands for them, or, with fuse_unk,
  // for a whole run of such characters.
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
