// Fuzzes grammars: any bytes are a grammar or sx::Error. Of a grammar, texts are written along its masks: each token a
// mask allows must be one the state can go on with, within bounded time and memory. Masks, their work and their errors
// are compared with those of a matcher that keeps next to nothing and is interrupted: they are a function of grammar
// and text.
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
  for (const char* more : {"ab", "\":", "{\"", "\xC3\xA9", "\xF0\x9F", "00", "true", "  ", "x=", "aaaaaaaaaaaa"})
    bytes.emplace_back(more);
  const sx::Token end = sx::Token(bytes.size()), control = end + 1;
  bytes.resize(bytes.size() + 3);
  const sx::TokenTrie::Control names{{control, "[A]"}, {control + 1, "[A]b"}};
  return std::make_shared<const sx::TokenTrie>(bytes, std::span(&end, 1), int(bytes.size()), sx::TokenTrie::Encode(),
                                               names);
}

struct Answer {
  std::vector<uint32_t> bits;
  uint64_t work = 0;
  std::string error;
  bool operator==(const Answer&) const = default;
};

Answer ask(sx::GrammarMatcher& matcher, const sx::GrammarMatcher::State& state) {
  Answer answer;
  try {
    answer.bits = *matcher.mask(state);
  } catch (const sx::Error& e) { answer.error = e.what(); }
  answer.work = matcher.work();
  if (answer.work > matcher.limits().work) __builtin_trap();
  return answer;
}

void write_text(sx::GrammarMatcher& matcher, sx::GrammarMatcher& other, uint32_t random) {
  auto state = matcher.start(), there = other.start();
  for (int step = 0; step < 24 && state; ++step) {
    if (matcher.forced(state, 64) != other.forced(there, 64)) __builtin_trap();
    try {
      other.mask(there, [] { return true; });
    } catch (const sx::GrammarCancelled&) {
    } catch (const sx::Error&) {}
    const Answer answer = ask(matcher, state);
    if (answer != ask(other, there)) __builtin_trap();
    if (!answer.error.empty()) return;
    std::vector<sx::Token> allowed;
    for (sx::Token t = 0; t < matcher.trie().vocab(); ++t)
      if (answer.bits[size_t(t) / 32] >> (t % 32) & 1) allowed.push_back(t);
    if (allowed.empty()) __builtin_trap();
    const sx::Token chosen = allowed[(random = random * 1664525u + 1013904223u) % allowed.size()];
    state = matcher.advance(state, chosen);  // an exception here leaves the target: a finding
    there = other.advance(there, chosen);
    if (!state && !matcher.trie().is_end(chosen)) __builtin_trap();
    if (bool(state) != bool(there)) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto trie = make_trie();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::unique_ptr<sx::GrammarMatcher> matcher, other;
  try {
    constexpr size_t kStacks = 256;
    constexpr uint64_t kWork = 200000;
    matcher = std::make_unique<sx::GrammarMatcher>(
        text, trie,
        sx::GrammarLimits{.stacks = kStacks, .states = 200, .parts = 1 << 16, .mask_bytes = 4000, .work = kWork});
    other = std::make_unique<sx::GrammarMatcher>(
        text, trie, sx::GrammarLimits{.stacks = kStacks, .states = 2, .parts = 2, .mask_bytes = 1, .work = kWork});
  } catch (const sx::Error&) { return 0; }
  write_text(*matcher, *other, uint32_t(size) * 2654435761u);
  return 0;
}
