#include "engine/vocabulary.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace sx {

VocabularyImpl::VocabularyImpl(std::shared_ptr<const ModelFile> file, const std::string& chat_template) : file_(std::move(file)) {
  tokenizer_ = Tokenizer::create(file_->tokenizer());
  if (tokenizer_->size() > file_->config().vocab)
    fail("'{}': the tokenizer has {} tokens, the embedding only {} rows", file_->path(), tokenizer_->size(), file_->config().vocab);
  const auto text_of = [&](Token t) { return t >= 0 ? tokenizer_->printable(t) : std::string(); };
  const bool own = chat_template.empty();
  chat_.emplace(own ? tokenizer_->chat_template() : chat_template, ChatTokens{text_of(tokenizer_->bos()), text_of(tokenizer_->eos())},
                own ? fmt::format("chat template of '{}'", file_->path()) : "chat template");
}

std::unique_ptr<Vocabulary> Vocabulary::open(const std::string& model, const std::string& chat_template) {
  return std::make_unique<VocabularyImpl>(ModelFile::open(model.empty() ? default_model_path() : model), chat_template);
}

std::vector<Token> VocabularyImpl::tokenize(std::string_view text, bool add_special, bool parse_special) const {
  return tokenizer_->encode(text, add_special, parse_special);
}

std::string VocabularyImpl::detokenize(std::span<const Token> tokens, bool show_special) const {
  for (Token t : tokens)
    if (t < 0 || t >= tokenizer_->size()) fail("token {} is outside the vocabulary of {}", t, tokenizer_->size());
  return tokenizer_->decode(tokens, !show_special);
}

std::string VocabularyImpl::token_text(Token token) const { return tokenizer_->printable(token); }

std::string VocabularyImpl::apply_template(std::string_view messages_json, bool add_generation_prompt) const {
  nlohmann::ordered_json messages;
  try {
    messages = nlohmann::ordered_json::parse(messages_json);
  } catch (const nlohmann::json::exception& e) {
    fail("messages: broken JSON: {}", e.what());
  }
  return chat_->render(messages, nullptr, add_generation_prompt, nlohmann::ordered_json::object());
}

}  // namespace sx
