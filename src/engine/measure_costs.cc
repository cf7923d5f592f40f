#include "engine/measure_costs.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "base/clock.h"
#include "base/error.h"

namespace sx {
namespace {

constexpr double kMeasureMs = 400;  // time that may be spent on costs when an engine opens
constexpr int kSweeps = 5, kMostMeasured = 64;
constexpr int kFarHistory = 2048;

}  // namespace

CostRange cost_range(const SpeculationParts& parts, int rows) {
  const int most =
      std::min({rows, parts.target->options().max_outputs, parts.target->options().max_rows, kMostMeasured});
  return {most, std::max(0, std::min(kFarHistory, parts.context - most))};
}

double time_pass(const SpeculationParts& parts, SeqId seq, int rows, int history) {
  // Tokens that differ: in a mixture equal ones would share their experts, and rows would seem cheaper than they are.
  std::array<Token, kMostMeasured> tokens{};
  std::array<int32_t, kMostMeasured> positions{}, outputs{};
  SX_ASSERT(rows > 0 && rows <= kMostMeasured);
  const int64_t vocab = parts.target->config().vocab;
  int64_t step = vocab / 3 + 1;
  while (std::gcd(step, vocab) != 1) ++step;
  for (int i = 0; i < rows; ++i)
    tokens[size_t(i)] = Token(i * step % vocab), positions[size_t(i)] = history + i, outputs[size_t(i)] = i;
  const SeqRows one{.first_row = 0, .rows = rows, .slot = seq, .history = history};
  const size_t n = size_t(rows);
  const double before = now_ms();
  parts.target->forward(
      {std::span(tokens).first(n), std::span(positions).first(n), std::span(&one, 1), std::span(outputs).first(n)},
      *parts.kv);
  parts.backend->wait();
  return now_ms() - before;
}

// Passes of 1, 2, 4, ... rows on an empty and on a filled cache, all of them again and again: the least of each is
// taken, so that a busy moment spoils one sweep of all rather than all of one.
void measure_costs(const SpeculationParts& parts, int rows) {
  const double start = now_ms();
  const auto [most, far] = cost_range(parts, rows);
  const auto time = [&](int count, int history) { return time_pass(parts, 0, count, history); };
  for (int count : CostModel::kRows)  // a backend may record the passes it meets first
    if (count == 1 || (parts.backend->traits().records_steps && count <= most)) time(count, 0), time(count, far);
  if (far > 0) {  // cells of their own, not pages of zeros
    std::vector<KvMove> moves;
    for (int i = 1; i < far; ++i) moves.push_back({0, i, 0});
    parts.backend->kv_move({parts.kv, parts.kv, 0, 0, moves});
  }
  std::array<double, CostModel::kRows.size()> near{}, behind{};
  const auto least = [](double& ms, double now) { ms = ms == 0 ? now : std::min(ms, now); };
  for (int sweep = 0; sweep < kSweeps; ++sweep)
    for (size_t i = 0; i < near.size() && CostModel::kRows[i] <= most; ++i) {
      const bool needed = sweep == 0 && i < 2;
      if (!needed && now_ms() - start > kMeasureMs) break;
      least(near[i], time(CostModel::kRows[i], 0));
      if (far > 0) least(behind[i], time(CostModel::kRows[i], far));
    }
  for (size_t i = 0; i < near.size(); ++i) {
    if (near[i] > 0) parts.cost_model->set(CostModel::kRows[i], 0, near[i]);
    if (behind[i] > 0) parts.cost_model->set(CostModel::kRows[i], far, behind[i]);
  }
}

}  // namespace sx
