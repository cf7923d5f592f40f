// Cuts a template into tokens with Jinja2's whitespace rules as chat templates use them: trim_blocks and lstrip_blocks
// on, one trailing newline of the file dropped, '-' and '+' marks honoured.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sx::jinja {

enum class Tok : uint8_t {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  Tok kind;
  int line;
  std::string text;  // data, name, unescaped string, or the operator's characters
  int64_t integer = 0;
  double real = 0;
};

// Throws Failure after storing the culprit's line in `line`.
std::vector<Token> tokenize(std::string_view source, int& line);

}  // namespace sx::jinja
