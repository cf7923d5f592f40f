// Predefined grids of `specextend eval --suite NAME`, and the figures of the SpecExtend paper beside what was measured.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/eval_stats.h"

namespace sx::cli {

// The experiments of the paper in our setting: drafts with and without retrieval by length, the draft cache in its
// place, retrieval's interval, chunk and budget, other methods for long inputs, and preset auto. `quick`: one length,
// one run of each cell, and no variation of retrieval.
EvalGrid paper_grid(bool quick);

// A figure of the paper and the same of ours, at the longest prompts that both methods have.
struct PaperFigure {
  std::string what;                          // "retrieval instead of the whole text"
  std::string paper, setting;                // "1.46x", "Vicuna-7B, 68M draft"
  std::string method, against;               // ours: the one over the other
  std::optional<double> whole{}, decode{};   // ours as a user waits, and decode only
  std::optional<double> accepted{}, base{};  // accepted tokens per pass, of `method` and of `against`
  double prompt_tokens = 0;
};
// Figures whose methods are both there; none unless the paper's grid was run.
std::vector<PaperFigure> paper_figures(std::span<const EvalRow> rows);

}  // namespace sx::cli
