// Fuzzes grammars: any bytes are a grammar or sx::Error. Of a grammar, texts are written along its masks: each token a mask allows must be
// one the state can go on with, within bounded time and memory.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/grammar/matcher.h"

namespace {

std::shared_ptr<const sx::TokenTrie> make_trie() {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, char(b));
  for (const char* more : {"ab", "\":", "{\"", "\xC3\xA9", "\xF0\x9F", "00", "true", "  ", "x="}) bytes.emplace_back(more);
  const sx::Token end = sx::Token(bytes.size());
  return std::make_shared<const sx::TokenTrie>(bytes, std::span(&end, 1), int(end) + 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto trie = make_trie();
  try {
    sx::GrammarMatcher matcher(std::string_view(reinterpret_cast<const char*>(data), size), trie,
                               {.stacks = 256, .states = 200, .parts = 1 << 16, .mask_bytes = 4000});
    auto state = matcher.start();
    uint32_t dice = uint32_t(size) * 2654435761u;
    for (int step = 0; step < 24 && state; ++step) {
      const sx::GrammarMask mask = matcher.mask(state);
      matcher.forced(state, 64);
      std::vector<sx::Token> allowed;
      for (sx::Token t = 0; t < trie->vocab(); ++t)
        if ((*mask)[size_t(t) / 32] >> (t % 32) & 1) allowed.push_back(t);
      if (allowed.empty()) __builtin_trap();
      const sx::Token chosen = allowed[(dice = dice * 1664525u + 1013904223u) % allowed.size()];
      state = matcher.advance(state, chosen);
      if (!state && !trie->is_end(chosen)) __builtin_trap();
    }
  } catch (const sx::Error&) {
  }
  return 0;
}
