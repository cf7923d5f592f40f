// The pre-tokenisers that GGUF files name instead of writing them down (tokenizer.ggml.pre).
#pragma once
#include <string_view>
#include <vector>

namespace sx {

struct NamedPreTokenizer {
  std::vector<std::string_view> patterns;  // applied one after the other, matches isolated
  bool ignore_merges = false;
  bool adds_bos = false;  // unless the file says otherwise
  bool nfc = false;       // the published tokenizer normalises first
};

// nullptr for a name we do not know.
const NamedPreTokenizer* find_pre_tokenizer(std::string_view name);

}  // namespace sx
