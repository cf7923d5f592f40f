// What a model file says about its vocabulary, before anyone interprets it. GGUF fills the arrays; a Hugging Face
// folder fills the texts of its files. text/tokenizer turns either into a TokenCodec.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace sx {

enum class TokenType : uint8_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct TokenizerData {
  std::string file;  // where it came from, for error messages
  // From GGUF:
  std::string name;   // the model's (general.name): some vocabularies are treated by it
  std::string model;  // "gpt2" (byte-level BPE) or "llama" (SentencePiece); empty when JSON is used
  std::string pre;    // pre-tokeniser's name: "smollm", "llama-bpe", "qwen2", ...
  std::vector<std::string> tokens;
  std::vector<float> scores;                                 // [tokens] or empty
  std::vector<TokenType> types;                              // [tokens] or empty
  std::vector<std::string> merges;                           // "left right"
  int32_t bos = -1, eos = -1, eot = -1, unk = -1, pad = -1;  // -1: none
  int add_bos = -1, add_eos = -1, add_space_prefix = -1;     // -1: not said
  std::string chat_template;  // GGUF tokenizer.chat_template, or from tokenizer_config.json / chat_template.jinja
  // From a Hugging Face folder:
  std::string tokenizer_json;  // contents of tokenizer.json, empty if absent
  std::string tokenizer_config_json;
  std::string generation_config_json;
  std::string special_tokens_map_json;
  std::string sentencepiece;      // contents of tokenizer.model, where there is no tokenizer.json
  std::string added_tokens_json;  // beside tokenizer.model
  std::vector<int32_t> ends;  // what config.json says ends a text; for folders whose generation_config.json does not
  // Both: size of the embedding matrix (may exceed tokens.size()).
  int32_t vocab = 0;

  bool empty() const {
    return model.empty() && tokenizer_json.empty() && sentencepiece.empty();
  }  // no vocabulary at all
};

}  // namespace sx
