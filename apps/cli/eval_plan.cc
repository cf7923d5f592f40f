#include "cli/eval_plan.h"

#include <fmt/format.h>
#include <specextend/error.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sx::cli {
namespace {

template <typename T>
void drop_doubles(std::vector<T>& values) {
  std::vector<T> kept;
  for (const T& value : values)
    if (std::find(kept.begin(), kept.end(), value) == kept.end()) kept.push_back(value);
  values = std::move(kept);
}

}  // namespace

EvalGrid checked(EvalGrid grid) {
  grid.methods.insert(grid.methods.begin(), kPlainMethod);
  drop_doubles(grid.methods), drop_doubles(grid.lengths), drop_doubles(grid.temperatures), drop_doubles(grid.answers),
      drop_doubles(grid.batches);
  const auto need = [](bool ok, const char* what, double value, const char* expected) {
    if (!ok) throw Error(fmt::format("{} {}: {} is expected", what, value, expected));
  };
  if (grid.lengths.empty() || grid.temperatures.empty() || grid.answers.empty() || grid.batches.empty())
    throw Error("a list of lengths, temperatures, answer lengths or batch sizes is empty: nothing would be run");
  for (const int n : grid.lengths) need(n == 0 || n >= 16, "--length", n, "0 (as the prompts are) or at least 16");
  for (const double t : grid.temperatures) need(t >= 0 && std::isfinite(t), "--temp", t, "a number from 0 on");
  for (const int n : grid.answers) need(n >= 1, "-n", n, "a number from 1 on");
  for (const int n : grid.batches) need(n >= 1 && n <= 1024, "--batch", n, "a number from 1 to 1024");
  need(grid.repetitions >= 1 && grid.repetitions <= 1000, "--repetitions", grid.repetitions, "a number from 1 to 1000");
  return grid;
}

std::string cell_name(const EvalCell& cell) {
  const EvalCase& c = cell.with;
  std::string out = fmt::format("{}, {}", cell.method, c.prompt);
  if (c.length > 0) out += fmt::format(", {} tokens", c.length);
  out += fmt::format(", T = {:g}, {} new", c.temperature, c.answer);
  if (c.batch > 1) out += fmt::format(", batch of {}", c.batch);
  return out;
}

std::vector<size_t> method_order(size_t methods, size_t with, int repetition) {
  std::vector<size_t> order(methods);
  std::iota(order.begin(), order.end(), size_t(0));
  if (methods < 2) return order;
  if (repetition == 0) {
    std::rotate(order.begin() + 1, order.begin() + 1 + ptrdiff_t(with % (methods - 1)), order.end());
  } else {
    std::rotate(order.begin(), order.begin() + ptrdiff_t((with + size_t(repetition)) % methods), order.end());
    // Every other repetition goes backwards, so that no method always follows the same one.
    if (repetition % 2 == 0) std::reverse(order.begin(), order.end());
  }
  return order;
}

std::vector<EvalJob> eval_jobs(size_t methods, size_t cases, int repetitions) {
  std::vector<EvalJob> jobs;
  for (int repetition = 0; repetition < repetitions; ++repetition)
    for (size_t with = 0; with < cases; ++with)
      for (const size_t method : method_order(methods, with, repetition)) jobs.push_back({method, with, repetition});
  return jobs;
}

}  // namespace sx::cli
