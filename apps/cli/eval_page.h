// The report of `specextend eval`: results in, one HTML file without a script out; and the table for the terminal.
#pragma once
#include <string>

#include "cli/eval_store.h"

namespace sx::cli {

std::string eval_page(const EvalResults& results);
// The rows of rows_of(): a line for each method and setting, the worst prompt beside the median.
std::string eval_table(const EvalResults& results);
// What moved from one evaluation to another, the cells that moved most first.
std::string diff_table(const EvalDiff& diff);

}  // namespace sx::cli
