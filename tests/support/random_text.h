// Prompts of random tokens for tiny models.
#pragma once
#include <random>
#include <vector>

#include "base/token.h"

namespace sx::testing {

inline std::vector<Token> random_text(int length, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Token> tokens;
  for (int i = 0; i < length; ++i) tokens.push_back(Token(3 + random() % 300));
  return tokens;
}

// Repeats itself here and there, so that look-ups find something.
inline std::vector<Token> repeating_text(int length, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Token> tokens;
  while (int(tokens.size()) < length) {
    if (tokens.size() > 20 && random() % 4 == 0) {
      const size_t from = random() % (tokens.size() - 10);
      for (size_t i = 0; i < 10; ++i) tokens.push_back(tokens[from + i]);
    } else {
      tokens.push_back(Token(3 + random() % 300));
    }
  }
  tokens.resize(size_t(length));
  return tokens;
}

}  // namespace sx::testing
