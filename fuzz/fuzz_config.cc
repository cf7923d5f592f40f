// Fuzzes the readers of config.json, generation_config.json and tokenizer_config.json: any text either yields a
// configuration that passes validation, or throws sx::Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "formats/hf_config.h"
#include "formats/validate.h"

namespace {

template <class Body>
void allow_error(Body body) {
  try {
    body();
  } catch (const sx::Error&) {}
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  allow_error([&] {
    const sx::ModelConfig config = sx::config_from_json(text, "config.json");
    sx::validate_config(config, "config.json");
    if (config.heads % config.kv_heads != 0 || config.head_dim % 2 != 0) __builtin_trap();
    (void)sx::expected_tensors(config);
  });
  allow_error([&] {
    sx::TokenizerData tokens;
    tokens.vocab = 1000;
    sx::token_ids_from_json(text, "generation_config.json", tokens);
    sx::validate_tokenizer(tokens);
  });
  allow_error([&] { (void)sx::chat_template_from_json(text, "tokenizer_config.json"); });
  return 0;
}
