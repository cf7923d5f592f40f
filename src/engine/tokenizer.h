// The text side of an engine: tokenizer and chat template of a model file.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/model_file.h"
#include "specextend/tokenizer.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace sx {

class TokenizerImpl : public Tokenizer {
 public:
  TokenizerImpl(std::shared_ptr<const ModelFile> file, const std::string& chat_template);

  std::vector<Token> tokenize(std::string_view text, bool add_special, bool parse_special) const override;
  std::string detokenize(std::span<const Token> tokens, bool show_special, bool continues) const override;
  std::string token_text(Token token) const override;
  std::string apply_template_json(std::string_view messages_json, bool add_generation_prompt,
                                  std::string_view tools_json, std::string_view variables_json) const override;
  std::string token_bytes(Token token) const override { return std::string(codec_->bytes_of(token)); }
  bool is_end(Token token) const override { return codec_->is_end(token); }
  std::string chat_template() const override { return template_; }
  std::vector<std::string> warnings() const override;
  const TokenCodec& codec() const { return *codec_; }

 private:
  std::shared_ptr<const ModelFile> file_;
  std::unique_ptr<TokenCodec> codec_;
  std::string template_;
  std::optional<ChatTemplate> chat_;
  std::string template_error_;  // why the model's own template cannot be used; conversations fail with it
};

}  // namespace sx
