// The files of an evaluation: results.jsonl, which grows run by run and from which an interrupted evaluation goes on,
// and results.csv.
#pragma once
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/eval_stats.h"

namespace sx::cli {

nlohmann::ordered_json to_object(const EvalRun& run);
EvalRun eval_run_from(const nlohmann::json& object);  // throws nlohmann::json::exception

// What results.jsonl holds. Its first line is the head: an object with "eval" (what ran: model, machine, data, ...) and
// "fixed", which an evaluation that goes on in the same folder must have in common.
struct EvalResults {
  nlohmann::ordered_json head;
  std::vector<EvalRun> runs;
};
// Of the text of a results.jsonl; `name` stands for it in errors. A last line that was not written to its end is left
// out; `good_bytes`, if any, gets the length of the rest. Throws sx::Error naming the line that is wrong.
EvalResults parse_eval_results(const std::string& text, const std::string& name, size_t* good_bytes = nullptr);
EvalResults read_eval_results(const std::string& folder_or_file);  // throws sx::Error where there are none

// Appends runs to FOLDER/results.jsonl. What the file has already is kept if its head fits, and thrown away if
// `restart`.
class EvalStore {
 public:
  EvalStore(const std::string& folder, const nlohmann::ordered_json& head, bool restart);
  const EvalResults& results() const { return results_; }
  bool has(const EvalCell& cell, int repetition) const { return done_.contains({cell, repetition}); }
  void add(const EvalRun& run);
  const std::string& folder() const { return folder_; }

 private:
  void append(const nlohmann::ordered_json& line);

  std::string folder_, path_;
  EvalResults results_;
  std::set<std::pair<EvalCell, int>> done_;  // cells and repetitions
  std::ofstream out_;
};

std::string eval_csv(std::span<const EvalRun> runs);
// Writes a file whole or not at all.
void write_eval_file(const std::string& path, const std::string& text);

}  // namespace sx::cli
