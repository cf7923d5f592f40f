// What a few steps of a model of any family give: for tests that compare backends to the last bit.
#pragma once
#include <string>
#include <vector>

#include "backend/backend.h"

namespace sx::testing {

// Names of the models in a folder, one folder each.
std::vector<std::string> models_in(const std::string& folder);

// Logits, hidden states and queries of a prompt, a token, a tree and what is accepted of it. A backend of ranks spreads
// the model over them.
std::vector<float> family_results(Backend& backend, const std::string& path);

}  // namespace sx::testing
