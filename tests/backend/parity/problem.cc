// What all problems share: memory, sizes, and the two comparisons (within a tolerance, and bit for bit).
#include "problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace sx::parity {

std::unique_ptr<Problem> make_problem(const OpRow& row) {
  switch (row.op) {
    case Op::kRopeStore:
    case Op::kAttend: return make_step_problem(row);
    case Op::kKvMove:
    case Op::kKvCells:
    case Op::kKvScore: return make_cell_problem(row);
    case Op::kExperts: return make_experts_problem(row);
    case Op::kKvRetrieve: return make_retrieve_problem(row);
    default: return make_row_problem(row);
  }
}

float* upload(Backend& backend, const std::vector<float>& values) {
  float* memory = backend.allocate(std::max<size_t>(values.size(), 1), "test data");
  std::copy(values.begin(), values.end(), memory);
  return memory;
}

std::vector<float> run_sizes(const std::vector<float>& values, int length, float least) {
  std::vector<float> sizes(values.size());
  for (size_t from = 0; from < values.size(); from += static_cast<size_t>(length)) {
    const size_t to = std::min(values.size(), from + static_cast<size_t>(length));
    double sum = 0;
    for (size_t i = from; i < to; ++i) sum += static_cast<double>(values[i]) * values[i];
    const auto size = static_cast<float>(std::sqrt(sum / static_cast<double>(to - from)));
    std::fill(sizes.data() + from, sizes.data() + to, std::max(size, least));
  }
  return sizes;
}

std::vector<double> rope_frequencies(int dims) {
  std::vector<double> out;
  for (int i = 0; i < dims / 2; ++i) out.push_back(std::pow(10000.0, -2.0 * i / dims));
  return out;
}

std::string difference(const Output& reference, const Output& got, const std::vector<float>& scale,
                       Tolerance tolerance) {
  if (got.values.size() != reference.values.size() || scale.size() != reference.values.size()) {
    return fmt::format("{} values, expected {} ({} sizes)", got.values.size(), reference.values.size(), scale.size());
  }
  double sum = 0, worst = -1;
  size_t where = 0;
  for (size_t i = 0; i < scale.size(); ++i) {
    double error = std::fabs(static_cast<double>(got.values[i]) - reference.values[i]) / scale[i];
    if (!(error < 1e30)) error = 1e30;  // NaN and infinities
    sum += error * error;
    if (error > worst) worst = error, where = i;
  }
  const double mean = scale.empty() ? 0 : std::sqrt(sum / static_cast<double>(scale.size()));
  if (mean <= tolerance.mean && worst <= tolerance.peak) return "";
  const auto columns = static_cast<size_t>(reference.columns);
  return fmt::format(
      "mean error {:.3g} (limit {:.3g}), worst {:.3g} (limit {:.3g}) at row {} column {}: {} instead of {}", mean,
      tolerance.mean, worst, tolerance.peak, where / columns, where % columns, got.values[where],
      reference.values[where]);
}

std::string variance(Instance& instance, const Output& together, int rows, bool few) {
  const auto bytes = static_cast<size_t>(together.columns) * sizeof(float);
  const auto check = [&](std::span<const int> chosen, const char* company) -> std::string {
    const std::vector<float> values = instance.again(chosen);
    for (size_t i = 0; i < chosen.size(); ++i) {
      const float* got = values.data() + i * static_cast<size_t>(together.columns);
      if (std::memcmp(got, together.row(chosen[i]), bytes) == 0) continue;
      int c = 0;
      while (std::memcmp(got + c, together.row(chosen[i]) + c, sizeof(float)) == 0) ++c;
      return fmt::format("row {} {} has other bits: column {} is {} instead of {}", chosen[i], company, c, got[c],
                         together.row(chosen[i])[c]);
    }
    return "";
  };
  for (int r = 0; r < rows; ++r) {
    if (few && r != 0 && r != rows - 1) continue;
    const int chosen[] = {r};
    if (std::string wrong = check(chosen, "alone"); !wrong.empty()) return wrong;
  }
  if (few) return "";
  std::vector<int> reversed(static_cast<size_t>(rows));
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  return check(reversed, "in reversed order");
}

}  // namespace sx::parity
