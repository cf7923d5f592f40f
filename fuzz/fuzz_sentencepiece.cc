// Fuzzes SentencePiece's model file: the input is the file. What is read encodes a few texts; nothing may crash, tokens
// are in range, and streaming equals decoding at once.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const sx::TokenCodec& tokenizer, std::string_view text) {
  const auto tokens = tokenizer.encode(text, true, true);
  for (sx::Token token : tokens) require(token >= 0 && token < tokenizer.size());
  for (const auto place : {sx::TextPlace::kStart, sx::TextPlace::kBehind}) {
    sx::Detokenizer stream(tokenizer, true, place);
    std::string joined;
    for (sx::Token token : tokens) joined += stream.push(token);
    joined += stream.finish();
    require(sx::utf8_is_valid(joined));
    require(joined == tokenizer.decode(tokens, false, place));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  sx::TokenizerData data;
  data.file = "fuzz.model";
  data.sentencepiece.assign(reinterpret_cast<const char*>(bytes), size);
  if (data.sentencepiece.empty()) return 0;
  if (size % 2)
    data.tokenizer_config_json =
        R"({"legacy": false, "added_tokens_decoder": {"3": {"content": "<x>", "rstrip": true}}})";
  try {
    const auto tokenizer = sx::TokenCodec::create(data);
    for (const char* text :
         {"", "  the river <sep>x  ", "o\xEF\xAC\x81x \xE3\x80\x80\xEF\xBC\xA1 e\xCC\x81 \xE2\x80\xA6",
          "<s><x> a\xFF</s>", "\xE2\x96\x81\xE2\x96\x81x12"}) {
      check(*tokenizer, text);
    }
  } catch (const sx::Error&) {}
  return 0;
}
