// The tables of `specextend eval` for the terminal.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "cli/eval_page.h"
#include "cli/put.h"

namespace sx::cli {
namespace {}  // namespace

std::string eval_table(const EvalResults& results) {
  const std::vector<EvalRow> rows = rows_of(summarise(results.runs));
  size_t width = 6;
  for (const EvalRow& row : rows) width = std::max(width, row.method.size());
  std::string out;
  put(out, "{:<{}} {:>5} {:>6} {:>4} {:>5} {:>9} {:>8} {:>8} {:>7} {:>7} {:>7} {:>8} {:>8} {:>8}  {}\n", "method",
      width, "batch", "prompt", "T", "new", "first", "tokens", "speed-up", "worst", "decode", "tokens", "distinct",
      "time", "peak", "bytes");
  put(out, "{:<{}} {:>5} {:>6} {:>4} {:>5} {:>9} {:>8} {:>8} {:>7} {:>7} {:>7} {:>8} {:>8} {:>8}\n", "", width, "size",
      "tokens", "", "", "token ms", "per s", "median", "prompt", "only", "/ pass", "8-grams", "told", "MB");
  for (const EvalRow& row : rows) {
    put(out, "{:<{}} {:>5} {:>6.0f} {:>4g} {:>5} {:>9.1f} {:>8.1f}", row.method, width, row.batch, row.prompt_tokens,
        row.temperature, row.answer, row.first_token_ms, row.tokens_per_second);
    if (row.method == kPlainMethod) put(out, " {:>8} {:>7} {:>7}", "", "", "");
    else put(out, " {:>7.2f}x {:>6.2f}x {:>6.2f}x", row.speedup, row.worst, row.decode_speedup);
    put(out, " {:>7.2f} {:>7.0f}%", row.tokens_per_pass, 100 * row.distinct);
    if (row.predicted > 0) put(out, " {:>+7.1f}%", 100 * (row.predicted - 1));
    else put(out, " {:>8}", "");
    put(out, " {:>8.0f}  {}", row.peak_mb, row.different ? fmt::format("{} DIFFERENT", row.different) : "equal");
    if (row.rouge) put(out, "; ROUGE-L {:.2f}, exact {:.2f}", *row.rouge, *row.exact);
    out += "\n";
  }
  return out;
}

std::string diff_table(const EvalDiff& diff) {
  std::string out;
  std::vector<const EvalChange*> moved;
  for (const EvalChange& c : diff.cells)
    if (c.moved || c.text_changed || c.lost_bytes) moved.push_back(&c);
  std::stable_sort(moved.begin(), moved.end(), [](const EvalChange* a, const EvalChange* b) {
    return std::abs(std::log(a->ratio)) > std::abs(std::log(b->ratio));
  });
  if (!moved.empty())
    put(out, "{:>9} {:>9} {:>8} {:>7}  {}\n", "before", "after", "change", "noise", "tokens per second");
  for (const EvalChange* c : moved)
    put(out, "{:>9.1f} {:>9.1f} {:>+7.1f}% {:>6.1f}%  {}{}{}{}\n", c->before, c->after, 100 * (c->ratio - 1),
        100 * c->noise, cell_name(c->cell), c->moved ? (c->ratio < 1 ? ": slower" : ": faster") : "",
        c->text_changed ? "; other text" : "", c->lost_bytes ? "; BYTES DIFFER FROM PLAIN" : "");
  put(out,
      "{} cells compared: {} slower, {} faster, {} within noise; {} with another text, {} no longer equal to plain\n",
      diff.cells.size(), diff.slower, diff.faster, int(diff.cells.size()) - diff.slower - diff.faster,
      diff.text_changed, diff.lost_bytes);
  if (diff.only_before || diff.only_after)
    put(out, "{} cells are only in the first, {} only in the second\n", diff.only_before, diff.only_after);
  return out;
}

}  // namespace sx::cli
