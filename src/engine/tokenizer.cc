#include "engine/tokenizer.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "specextend/engine.h"

namespace sx {
namespace {

nlohmann::ordered_json parsed(const char* what, std::string_view json) {
  if (json.empty()) return nullptr;
  try {
    return nlohmann::ordered_json::parse(json);
  } catch (const nlohmann::json::exception& e) { fail("{}: broken JSON: {}", what, e.what()); }
}

}  // namespace

TokenizerImpl::TokenizerImpl(std::shared_ptr<const ModelFile> file, const std::string& chat_template)
    : file_(std::move(file)) {
  codec_ = TokenCodec::create(file_->tokenizer());
  if (file_->unsupported().empty() && codec_->size() > file_->config().vocab)
    fail("'{}': the tokenizer has {} tokens, the embedding only {} rows", file_->path(), codec_->size(),
         file_->config().vocab);
  const auto text_of = [&](Token t) { return t >= 0 ? codec_->printable(t) : std::string(); };
  const bool own = chat_template.empty();
  template_ = own ? codec_->chat_template() : chat_template;
  try {
    chat_.emplace(template_, ChatTokens{text_of(codec_->bos()), text_of(codec_->eos())},
                  own ? fmt::format("chat template of '{}'", file_->path()) : "chat template");
  } catch (const Error& error) {
    if (!own) throw;  // the caller asked for this template
    template_error_ = error.what();
  }
}

std::vector<std::string> TokenizerImpl::warnings() const {
  std::vector<std::string> out;
  const TokenizerData& data = file_->tokenizer();
  if (data.model == "gpt2" && data.pre.empty())
    out.push_back(fmt::format(
        "'{}' does not say how its words are cut (key tokenizer.ggml.pre, which older converters did not write): the "
        "default is taken, and answers may be worse than the model's own",
        file_->path()));
  if (!template_error_.empty()) out.push_back(template_error_ + " (texts without a chat are not affected)");
  return out;
}

std::unique_ptr<Tokenizer> Tokenizer::open(const std::string& model, const std::string& chat_template) {
  return std::make_unique<TokenizerImpl>(ModelFile::open_any(model.empty() ? default_model_path() : model),
                                         chat_template);
}

std::vector<Token> TokenizerImpl::tokenize(std::string_view text, bool add_special, bool parse_special) const {
  return codec_->encode(text, add_special, parse_special);
}

std::string TokenizerImpl::detokenize(std::span<const Token> tokens, bool show_special, bool continues) const {
  for (Token t : tokens)
    if (t < 0 || t >= codec_->size()) fail("token {} is outside the vocabulary of {}", t, codec_->size());
  return codec_->decode(tokens, !show_special, continues ? TextPlace::kBehind : TextPlace::kStart);
}

std::string TokenizerImpl::token_text(Token token) const { return codec_->printable(token); }

std::string TokenizerImpl::apply_template_json(std::string_view messages_json, bool add_generation_prompt,
                                               std::string_view tools_json, std::string_view variables_json) const {
  if (!chat_) throw Error(template_error_);
  return chat_->render(parsed("messages", messages_json), parsed("tools", tools_json), add_generation_prompt,
                       parsed("variables", variables_json));
}

}  // namespace sx
