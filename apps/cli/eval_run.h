// Runs an evaluation on one engine: every method on every case, in the order of eval_plan.h, each run compared with
// plain decoding byte by byte and written to results.jsonl at once.
#pragma once
#include <specextend/specextend.h>

#include <functional>
#include <string>
#include <vector>

#include "cli/eval_data.h"
#include "cli/eval_plan.h"
#include "cli/eval_store.h"

namespace sx::cli {

struct EvalProgress {
  int done = 0, jobs = 0;
  double seconds_left = 0;  // 0: not known yet
  std::string now{};        // the cell that runs next
};

struct EvalOptions {
  EvalGrid grid;
  EvalPromptOptions prompts;
  GenerateOptions generate;  // sampling but for the temperature, end of text, stop strings
  std::string out;           // folder
  bool restart = false;      // results that are there are thrown away
  double startup_ms = 0;
  std::function<bool()> cancelled{};
  std::function<void(const EvalProgress&)> on_progress{};
  std::function<void(const std::string&)> on_note{};  // a sentence that the user should know
};

struct EvalOutcome {
  bool finished = true;  // false: cancelled
  int different = 0;     // runs whose bytes are not those of plain decoding, although the method promises them
  int skipped = 0;       // runs that were there already
  EvalResults results;
};

// The methods as --spec takes them, for an engine that serves all of them: names and sessions are set. Methods with
// equal presets are told apart by their text.
EngineOptions eval_engine_options(EngineOptions engine, const EvalGrid& grid, const std::string& draft_model);
// Writes results.jsonl, results.csv and report.html. Throws sx::Error on data that does not fit the engine.
EvalOutcome evaluate(Engine& engine, const std::vector<EvalPrompt>& data, const EvalOptions& options);

}  // namespace sx::cli
