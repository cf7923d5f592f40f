// Finds the retrieval layers of the target. Retrieval scores the text by the attention of a few layers, and layers
// differ widely in whether they attend to the passage that the text is about to repeat. A short text that ends with the
// beginning of an earlier passage shows it.
#pragma once
#include <functional>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "backend/backend.h"
#include "model/model.h"

namespace sx {

// Returns the two layers whose attention from a repeated passage is highest, compared with other places, where the
// passage stood first; ascending. Overwrites cells of slot 0 and the query taps of `target`, which must have at least
// one. For a target that is too large for this, returns likely_retrieval_layers(). `encode` turns text into tokens.
std::vector<int> probe_retrieval_layers(Backend& backend, Model& target, KvStore& kv,
                                        const std::function<std::vector<Token>(std::string_view)>& encode);

// The usual place of retrieval layers, two thirds of the way up: two layers, or the only one of a model with one layer.
std::vector<int> likely_retrieval_layers(int layers);

}  // namespace sx
