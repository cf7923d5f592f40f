// The data of one generation that `specextend explain` shows, its sums, and its JSON (docs/explain.md). Pure functions.
#pragma once
#include <specextend/specextend.h>

#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace sx::cli {

struct ExplainRound {
  int drafted = 0, verified = 0, accepted = 0;
  std::vector<Token> tokens;           // the verified tree; the first node is the pending token
  std::vector<std::string> texts;      // of the nodes
  std::vector<int32_t> parents, path;  // as in RoundInfo
  PhaseTimes times;
  int refreshes = 0;  // of the draft's cache, so far
  // Set by place_rounds:
  int first = 0, made = 0;  // the round's tokens in the text: the accepted ones, then the bonus token
  double mean = 0;          // accepted tokens per round, over the last kMeanRounds rounds
};

// The draft's KV cache after a refresh chose its cells.
struct ExplainRefresh {
  int number = 0;                           // counted from 1
  int round = 0;                            // index of the round that it came with
  int length = 0;                           // tokens of the text at the end of that round's draft
  std::vector<std::pair<int, int>> ranges;  // [first, end) places in the text, ascending
};

struct Explanation {
  std::string version, model, draft_model, method, settings_json, backend;
  std::string text;
  std::vector<Token> tokens;        // generated
  std::vector<std::string> pieces;  // their texts
  FinishReason reason = FinishReason::kEnd;
  Timings timings;
  std::vector<ExplainRound> rounds;
  std::vector<ExplainRefresh> refreshes;  // empty: there were none
  int chunk = 0, sink = 0, recent = 0;    // tokens; chunk 0: no chunks
  int prompt_tokens = 0;
  std::vector<std::string> chunks;       // prompt and generated text, `chunk` tokens each
  double plain_ms = 0;                   // of one token without drafts; 0: not known
  bool compared = false, equal = false;  // decoded again without speculation, and whether the tokens were the same
  std::string difference;                // what to say where they were not: what the acceptance rule promises
};

constexpr int kMeanRounds = 8;

// Computes which tokens of the text each round produced, and the running means.
void place_rounds(Explanation& e);
// Clears the refreshes if all of them chose the whole text.
void drop_whole_refreshes(Explanation& e);
// Turns ascending positions into [first, end) ranges.
std::vector<std::pair<int, int>> ranges_of(std::span<const int32_t> cells);

struct ExplainSums {
  int64_t drafted = 0, verified = 0, accepted = 0, drafted_rounds = 0;
  int refreshes = 0;
  PhaseTimes times;
  // As in SpecStats: drafted tokens accepted per drafted round, and with the bonus token.
  double accepted_per_round() const { return drafted_rounds ? double(accepted) / double(drafted_rounds) : 0; }
  double tokens_per_round() const { return accepted_per_round() + 1; }
};
ExplainSums sums_of(const Explanation& e);

struct ExplainPhase {
  const char *name, *what;
  double ms;
};
std::array<ExplainPhase, 6> phases_of(const PhaseTimes& t);
double total_ms(const PhaseTimes& t);

// Valid UTF-8, and safe inside a script element: no '<', U+2028 or U+2029.
std::string explain_json(const Explanation& e);

}  // namespace sx::cli
