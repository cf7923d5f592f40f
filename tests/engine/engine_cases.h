// Ways to speculate for tests that run whole engines on another backend: every drafter, every kind of draft cache and
// every rule, on tiny models; and the requests to run them with.
#pragma once
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "specextend/specextend.h"

namespace sx::testing {

struct EngineCase {
  std::string name;
  SpecOptions spec;
  bool exact = true;  // the text is that of plain decoding
};
inline void PrintTo(const EngineCase& c, std::ostream* out) { *out << c.name; }  // for GoogleTest
const std::vector<EngineCase>& engine_cases();

inline constexpr int kRequestKinds = 3;  // greedy; sampled with filters; sampled with penalties and bias

struct EngineAnswer {
  std::vector<Token> tokens;
  std::vector<float> logits;    // of every token
  std::vector<int> tree_sizes;  // of every round
  bool operator==(const EngineAnswer&) const = default;
};

struct EngineRun {
  std::vector<EngineAnswer> alone;     // one for each kind of request
  std::vector<EngineAnswer> together;  // all kinds in one batch
  std::vector<float> evaluated;        // logits of the last rows of a text, and of all of a prompt
  int drafted = 0;
};

// Runs all requests on an engine of the given backend. kv_type: "" for the backend's own.
EngineRun run_engine(const SpecOptions& spec, std::unique_ptr<Backend> backend, const std::string& kv_type = "");

// "" when the tokens are equal and the logits have the same bits (or, trees included, everything has).
std::string text_difference(const EngineRun& found, const EngineRun& expected);
std::string tree_difference(const EngineRun& found, const EngineRun& expected);

}  // namespace sx::testing
