// A tokenizer of given words, for tests of the server's language. Its template writes down what it is given.
#pragma once
#include <specextend/specextend.h>

#include <string>
#include <vector>

namespace sx::server {

class FakeTokenizer : public Tokenizer {
 public:
  explicit FakeTokenizer(std::vector<std::string> words) : words_(std::move(words)) {}
  // One token per byte, after token 0 for the beginning.
  std::vector<Token> tokenize(std::string_view text, bool add_special, bool) const override {
    std::vector<Token> tokens;
    if (add_special) tokens.push_back(0);
    for (const char c : text) tokens.push_back(Token(uint8_t(c)));
    return tokens;
  }
  std::string detokenize(std::span<const Token> tokens, bool, bool) const override {
    std::string text;
    for (const Token token : tokens) text += token_bytes(token);
    return text;
  }
  std::string token_text(Token token) const override { return token_bytes(token); }
  std::string token_bytes(Token token) const override {
    if (size_t(token) >= words_.size()) throw Error("no such token");
    return words_[size_t(token)];
  }
  std::string apply_template_json(std::string_view messages, bool generate, std::string_view tools,
                                  std::string_view variables) const override {
    if (messages.find("refuse me") != std::string_view::npos) throw Error("the template refuses");
    return std::string(messages) + "|" + (generate ? "go" : "") + "|" + std::string(tools) + "|" +
           std::string(variables);
  }
  bool is_end(Token) const override { return false; }

 private:
  std::vector<std::string> words_;
};

}  // namespace sx::server
