// Normalises text as SentencePiece does: a compiled map replaces characters, user-defined pieces stay, extra spaces are
// removed, a space is put in front, spaces become visible (U+2581). The model file says which of these apply.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_trie.h"
#include "text/sentencepiece_model.h"

namespace sx {

class PieceNormalizer {
 public:
  // `dummy_prefix` overrides the model's. Throws sx::Error naming `file` when the character map is malformed.
  PieceNormalizer(const SentencePieceModel& model, bool dummy_prefix, const std::string& file);
  std::string apply(std::string_view valid_utf8) const;

 private:
  struct Step {
    std::string_view text;  // what replaces the first `length` bytes
    size_t length;
  };
  Step step(std::string_view text) const;
  Step longest_in_map(std::string_view text) const;  // length 0: none

  std::vector<uint32_t> map_;  // a double-array trie
  std::string replacements_;   // each ends with a zero byte
  ByteTrie untouched_;         // user-defined pieces
  bool any_untouched_ = false;
  bool dummy_prefix_, remove_extra_, escape_;
};

}  // namespace sx
