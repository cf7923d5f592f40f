// Fuzzes the tokenizers. The first byte chooses: a tokenizer.json (up to the first zero byte) that then encodes the
// rest, or arbitrary bytes through fixed vocabularies. Nothing may crash; tokens are in range; streaming equals
// decoding at once; byte-level BPE gives valid text back.
#include <cstddef>
#include <cstdint>
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const sx::TokenCodec& tokenizer, std::string_view text, bool lossless) {
  const auto tokens = tokenizer.encode(text, text.size() % 2 == 0, text.size() % 3 == 0);
  for (sx::Token token : tokens) require(token >= 0 && token < tokenizer.size());
  for (bool special : {false, true}) {
    sx::Detokenizer stream(tokenizer, special);
    std::string joined;
    for (sx::Token token : tokens) joined += stream.push(token);
    joined += stream.finish();
    require(sx::utf8_is_valid(joined));
    require(joined == tokenizer.decode(tokens, !special));
    if (lossless && special) require(joined == sx::utf8_lossy(text));
  }
}

void check_random_tokens(const sx::TokenCodec& tokenizer, std::string_view bytes) {
  sx::Detokenizer stream(tokenizer);
  std::vector<sx::Token> tokens;
  std::string joined;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    tokens.push_back((static_cast<unsigned char>(bytes[i]) << 8 | static_cast<unsigned char>(bytes[i + 1])) % 320);
    joined += stream.push(tokens.back());
    (void)tokenizer.printable(tokens.back());
  }
  require(joined + stream.finish() == tokenizer.decode(tokens, true));
}

sx::TokenizerData byte_level(const char* pre) {
  sx::TokenizerData data;
  data.file = "fuzz";
  data.model = "gpt2";
  data.pre = pre;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    data.tokens.push_back(sx::byte_alphabet_encode({&c, 1}));
  }
  data.merges = {"a a", "aa aa", "Ġ a", "a b", "Ġ Ġ", "ĠĠ ĠĠ", "1 1", "Ã ©", "Ċ Ċ"};
  for (const std::string& merge : data.merges) {
    const size_t space = merge.find(' ', 1);
    data.tokens.push_back(merge.substr(0, space) + merge.substr(space + 1));
  }
  data.types.assign(data.tokens.size(), sx::TokenType::kNormal);
  data.tokens.push_back("<s>");
  data.types.push_back(sx::TokenType::kControl);
  return data;
}

sx::TokenizerData sentence_piece() {
  sx::TokenizerData data;
  data.file = "fuzz";
  data.model = "llama";
  data.tokens = {"<unk>", "<s>", "</s>"};
  data.types = {sx::TokenType::kUnknown, sx::TokenType::kControl, sx::TokenType::kControl};
  for (int byte = 0; byte < 256; ++byte) data.tokens.push_back(fmt::format("<0x{:02X}>", byte));
  data.types.resize(data.tokens.size(), sx::TokenType::kByte);
  for (const char* text : {"▁", "▁▁", "a", "aa", "aaaa", "▁a", "é", "<", "s", "<s"}) data.tokens.push_back(text);
  data.types.resize(data.tokens.size(), sx::TokenType::kNormal);
  for (size_t i = 0; i < data.tokens.size(); ++i) data.scores.push_back(-static_cast<float>(i % 7));
  data.bos = 1;
  data.eos = 2;
  return data;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  static const char* const kNames[] = {"smollm",         "llama-bpe", "qwen2",  "deepseek-v3", "deepseek-llm",
                                       "deepseek-coder", "tekken",    "falcon", "superbpe"};
  const unsigned mode = bytes[0] % 16;
  if (mode >= 6 && mode < 15) {
    static std::unique_ptr<sx::TokenCodec> made[std::size(kNames)];
    auto& tokenizer = made[mode - 6];
    if (!tokenizer) tokenizer = sx::TokenCodec::create(byte_level(kNames[mode - 6]));
    check(*tokenizer, input, std::string_view(kNames[mode - 6]) != "qwen2");
    check_random_tokens(*tokenizer, input);
    return 0;
  }
  if (mode == 15) {
    static const std::unique_ptr<sx::TokenCodec> tokenizer = sx::TokenCodec::create(sentence_piece());
    check(*tokenizer, input, false);
    check_random_tokens(*tokenizer, input);
    return 0;
  }
  const size_t end = std::min(input.find('\0'), input.size());
  sx::TokenizerData data;
  data.file = "fuzz";
  data.vocab = mode % 2 ? 0 : 400;
  data.tokenizer_json =
      mode == 5 ? R"({"model": {"vocab": {"a": 0, "<s>": 1}, "merges": []}})" : std::string(input.substr(0, end));
  if (mode == 5)
    data.tokenizer_config_json = data.generation_config_json = data.special_tokens_map_json = input.substr(0, end);
  try {
    const auto tokenizer = sx::TokenCodec::create(data);
    check(*tokenizer, input.substr(end), false);
    check(*tokenizer, "a b  ab\n12 \xC3\xA9 <s> \xFF", false);
    check_random_tokens(*tokenizer, input);
  } catch (const sx::Error&) {}
  return 0;
}
