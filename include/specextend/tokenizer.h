// The text side of a model: its tokens and its chat template, without its weights.
//
//   const auto tokenizer = sx::Tokenizer::open("model.gguf");
//   const std::vector<sx::Token> tokens = tokenizer->tokenize("Once upon a time", true);
//
// Thread safety: all functions of a Tokenizer are const, and any number of threads may call them at the same time.
#pragma once
#include <specextend/error.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sx {

using Token = int32_t;

// One message of a conversation. Messages with more fields (tool calls, names) go through
// Tokenizer::apply_template_json.
struct Message {
  std::string role{};     // "system", "user", "assistant", or what else the model's template knows
  std::string content{};  // UTF-8
};

class Tokenizer {
 public:
  // `model`: a GGUF file or a Hugging Face folder; empty: the default model. The file needs no weights, and its
  // architecture need not be one that the engine can run. `chat_template`: Jinja source; empty: the model's own, else
  // ChatML. A template of the model that does not parse is a warning here and an error of apply_template only.
  static std::unique_ptr<Tokenizer> open(const std::string& model, const std::string& chat_template = {});
  virtual ~Tokenizer() = default;

  // add_special: adds the begin and end tokens that the vocabulary asks for. parse_special: control tokens that are
  // written in the text ("<|im_start|>") become single tokens; false keeps them plain text.
  virtual std::vector<Token> tokenize(std::string_view text, bool add_special = false,
                                      bool parse_special = true) const = 0;
  // Returns valid UTF-8. `continues`: the tokens stand behind other tokens, as an answer behind its prompt; without it,
  // the text loses the leading space that some vocabularies (SentencePiece) add. Throws sx::Error on a token outside of
  // the vocabulary.
  virtual std::string detokenize(std::span<const Token> tokens, bool show_special = false,
                                 bool continues = false) const = 0;
  virtual std::string token_text(Token token) const = 0;  // printable: control tokens by name, odd bytes escaped
  virtual std::string token_bytes(
      Token token) const = 0;                  // what it adds behind other tokens; may be part of a character
  virtual bool is_end(Token token) const = 0;  // the token ends a text

  // The prompt of a conversation, for tokenize(prompt, false, true).
  std::string apply_template(std::span<const Message> messages, bool add_generation_prompt = true) const;
  // The same from JSON: `messages_json` is an array of {"role": ..., "content": ..., ...}, `tools_json` an array of
  // functions as in the OpenAI API, `variables_json` an object of further variables of the template. Empty strings
  // stand for none.
  virtual std::string apply_template_json(std::string_view messages_json, bool add_generation_prompt = true,
                                          std::string_view tools_json = {},
                                          std::string_view variables_json = {}) const = 0;
  virtual std::string chat_template() const { return {}; }  // source of the template; empty: ChatML
  // Sentences about the file that a user should know: it does not say how words are cut, or its chat template does not
  // parse.
  virtual std::vector<std::string> warnings() const { return {}; }
};

}  // namespace sx
