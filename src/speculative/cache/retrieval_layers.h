// Which layers of the target find things again. Retrieval scores the text by one layer's attention; layers differ widely in whether
// they look at the place the text is about to repeat. A short text that ends with the beginning of an earlier passage shows it.
#pragma once
#include <functional>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "backend/backend.h"
#include "model/llama.h"

namespace sx {

// The two layers whose attention from a repeated passage stands out most where the passage stood first, ascending. Overwrites cells of
// slot 0, and the query taps of `target`, which must have at least one. A target too large for that gets
// likely_retrieval_layers(). `encode`: a piece of text as tokens.
std::vector<int> probe_retrieval_layers(Backend& backend, Model& target, KvStore& kv,
                                        const std::function<std::vector<Token>(std::string_view)>& encode);

// Where such layers usually are: two thirds of the way up. Two of them, of a model of one layer that one.
std::vector<int> likely_retrieval_layers(int layers);

}  // namespace sx
