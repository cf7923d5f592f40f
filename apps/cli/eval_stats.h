// The figures of `specextend eval`: what one run measured, what the repetitions of a cell say together, and what moved
// between two evaluations. Pure functions; docs/eval.md says what each figure means.
#pragma once
#include <specextend/specextend.h>

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/eval_plan.h"

namespace sx::cli {

// F-measure of the longest common subsequence of words: 1 for equal texts. Words are runs of letters, digits and bytes
// beyond ASCII, without regard to case.
double rouge_l(std::string_view text, std::string_view reference);
// Equal without regard to case and to white space at the ends and between words.
bool exact_match(std::string_view text, std::string_view reference);

double median(std::vector<double> values);  // 0 of none

// One run of one cell. Times in milliseconds; of a batch: sums of tokens and rounds, the wall clock of all.
struct EvalRun {
  EvalCell cell;
  int repetition = 0;
  std::string category;
  int prompt_tokens = 0, tokens = 0;
  double first_token_ms = 0;                                 // until the first token of an answer, on average
  double whole_ms = 0;                                       // until the last token of the last answer
  double prompt_ms = 0, draft_prompt_ms = 0, decode_ms = 0;  // on average
  double predicted_ms = 0;  // of a round, on average, by what was known before it ran; 0: not known
  double round_ms = 0;      // as it was
  int64_t rounds = 0, drafted_rounds = 0, drafted = 0, verified = 0, accepted = 0;
  std::vector<int64_t> tried_at_depth, accepted_at_depth;
  PhaseTimes times;
  double distinct = 1;  // share of distinct 8-grams
  double peak_mb = 0, device_mb = 0;
  bool promised = true;  // the method promises the bytes of plain decoding
  bool equal = true;     // and the answer has them
  std::string answer;    // the hash of its tokens and bytes
  std::optional<double> rouge, exact;

  double tokens_per_second() const { return whole_ms > 0 ? 1e3 * tokens / whole_ms : 0; }
  double decode_tokens_per_second() const;
  double tokens_per_pass() const { return rounds ? double(tokens) / double(rounds) : 0; }
  double accepted_per_pass() const { return rounds ? double(accepted) / double(rounds) : 0; }
};

// The repetitions of one cell: medians, and how far they lie apart.
struct EvalSummary {
  EvalCell cell;
  EvalRun typical;  // the run of median time
  int runs = 0;
  double whole_ms = 0, least_ms = 0, most_ms = 0;  // median, least and most whole_ms
  double first_token_ms = 0, tokens_per_second = 0, decode_tokens_per_second = 0, peak_mb = 0;
  double speedup = 0, decode_speedup = 0;  // over plain decoding of the same case; 0: that is not there
  bool equal = true;
  // Half of the range of the repetitions, as a share of their median; 0 for a single one.
  double spread() const { return whole_ms > 0 ? (most_ms - least_ms) / 2 / whole_ms : 0; }
};
// One for each cell, in the order in which the cells first come.
std::vector<EvalSummary> summarise(std::span<const EvalRun> runs);

// What the prompts of one setting say together about a method.
struct EvalRow {
  std::string method;
  int length = 0, answer = 0, batch = 1;
  double temperature = 0;
  int cells = 0, different = 0;
  double prompt_tokens = 0, first_token_ms = 0, tokens_per_second = 0, decode_tokens_per_second = 0;
  double tokens_per_pass = 0, accepted_per_pass = 0, distinct = 0, peak_mb = 0;
  double predicted = 0;                    // median over the prompts of predicted_ms / round_ms; 0: not known
  double speedup = 0, decode_speedup = 0;  // medians over the prompts
  double worst = 0;                        // least speed-up of a prompt, and which
  std::string worst_prompt{};
  std::optional<double> rouge{}, exact{};  // means over the prompts that have references
};
std::vector<EvalRow> rows_of(std::span<const EvalSummary> cells);

// What changed in a cell from one evaluation to another.
struct EvalChange {
  EvalCell cell;
  double before = 0, after = 0;  // medians of the tokens per second as a user waits
  double ratio = 1;              // after / before
  double noise = 0;              // a change up to this share says nothing
  bool moved = false, text_changed = false, lost_bytes = false;
};
struct EvalDiff {
  std::vector<EvalChange> cells;  // those that both have
  int only_before = 0, only_after = 0;
  int slower = 0, faster = 0, text_changed = 0, lost_bytes = 0;
  bool worse() const { return slower > 0 || lost_bytes > 0; }
};
inline constexpr double kLeastNoise = 0.03;
// A cell has moved if its medians differ by more than both spreads together and by more than `least_noise`, and no
// repetition of the one lies among those of the other. Cells with a single run take the median spread of all cells.
EvalDiff diff(std::span<const EvalSummary> before, std::span<const EvalSummary> after,
              double least_noise = kLeastNoise);

}  // namespace sx::cli
