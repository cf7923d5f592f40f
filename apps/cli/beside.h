// Several presets answer one prompt, one after the other in one session: what each took, and what could be gained at
// best on this machine (`specextend generate --beside`, ./demo).
#pragma once
#include <specextend/specextend.h>

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cli/compare.h"

namespace sx::cli {

struct BesideRun {
  std::string method;
  GenerateResult result{};
  AnswerTime time{};
  Speedup ratio{1, 1, 1};  // over the first run, plain decoding
  bool equal = true;       // has the bytes of plain decoding
  double tokens_per_pass() const;
};

// The least time of a verified pass by rows, from the rounds of all runs.
using PassTimes = std::map<int, double>;
// Tokens per plain pass if every row of a pass became a token and drafting took no time: the most that any draft could
// gain in decoding. 0: no pass of one row was seen.
double best_decode_gain(const PassTimes& passes);

// Plain decoding first, then each method in its order; `say` announces each. The prompt is read once, and again by
// methods that draft with a head, which has to see that; preset auto, which would go without, does so where it is
// `reader`. Each row counts what its own reading took, or that of plain decoding.
std::vector<BesideRun> run_beside(Session& session, std::span<const Token> prompt, const GenerateOptions& options,
                                  const std::vector<std::string>& methods, const std::string& reader, PassTimes& passes,
                                  const std::function<void(const std::string&)>& say);

std::string beside_table(std::span<const BesideRun> runs, const PassTimes& passes);
// The same as a page that fetches and runs nothing.
std::string beside_page(std::span<const BesideRun> runs, const PassTimes& passes, const std::string& machine);

}  // namespace sx::cli
