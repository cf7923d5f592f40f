// The pre-tokenisers that GGUF files name instead of writing them down (tokenizer.ggml.pre).
#pragma once
#include <string_view>
#include <vector>

namespace sx {

struct NamedPreTokenizer {
  std::vector<std::string_view> patterns;  // applied one after the other, each isolating its matches
  bool ignore_merges = false;
  bool adds_bos = false;  // the default for files that do not say
  bool nfc = false;       // the published tokenizer normalises first
};

// Returns nullptr for an unknown name.
const NamedPreTokenizer* find_pre_tokenizer(std::string_view name);

}  // namespace sx
