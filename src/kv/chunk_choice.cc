#include "kv/chunk_choice.h"

#include <algorithm>

#include "base/error.h"

namespace sx {
namespace {

constexpr size_t kGroup = 64;  // keys that are looked at together

}  // namespace

void append_cells(int from, int to, std::vector<int32_t>& out) {
  for (int cell = from; cell < to; ++cell) out.push_back(cell);
}

void choose_ends(int cells, int budget, int first, std::vector<int32_t>& out) {
  append_cells(0, first, out);
  append_cells(cells - (budget - first), cells, out);
}

int first_share(int budget, int sink, int recent) {
  return std::min(sink, budget - std::min(recent, budget - budget / 2));
}

bool choose_plainly(int cells, int budget, std::vector<int32_t>& out) {
  out.clear();
  if (budget > 0 && cells > budget) return false;
  if (budget > 0) append_cells(0, cells, out);
  return true;
}

ChunkPlan plan_chunks(std::span<const int32_t> borders, int budget, int sink, int recent) {
  const int chunks = int(borders.size()) - 1, cells = borders.back();
  sink = std::clamp(sink, 0, cells), recent = std::clamp(recent, 0, cells);
  ChunkPlan plan{0, chunks, 0};
  while (plan.first < chunks && borders[size_t(plan.first)] < sink) ++plan.first;
  while (plan.last > plan.first && borders[size_t(plan.last)] > cells - recent) --plan.last;
  plan.left = budget - borders[size_t(plan.first)] - (cells - borders[size_t(plan.last)]);
  return plan;
}

std::optional<EvenPlan> plan_even_chunks(std::span<const int32_t> borders, int budget, int sink, int recent) {
  const int chunks = int(borders.size()) - 1;
  if (chunks < 1 || budget < 1 || borders.back() <= budget || recent < 1) return std::nullopt;
  const ChunkPlan plan = plan_chunks(borders, budget, sink, recent);
  if (plan.left < 0) return std::nullopt;
  const int chunk = borders[1];
  SX_ASSERT(borders[0] == 0 && int64_t(chunk) * (chunks - 1) == borders[size_t(chunks) - 1] &&
            borders.back() <= int64_t(chunk) * chunks);
  const int take = std::min(plan.last - plan.first, plan.left / chunk);
  return EvenPlan{plan.first, plan.last, take, chunk, (plan.first + take - plan.last) * chunk + borders.back()};
}

void choose_chunks(std::span<const int32_t> borders, std::span<const float> scores, int budget, int sink, int recent,
                   std::vector<int32_t>& out, std::vector<uint64_t>& scratch) {
  SX_ASSERT(borders.size() == scores.size() + 1);
  const int cells = borders.back();
  if (choose_plainly(cells, budget, out)) return;
  sink = std::clamp(sink, 0, cells), recent = std::clamp(recent, 0, cells);
  const auto length = [&](int c) { return borders[size_t(c) + 1] - borders[size_t(c)]; };
  const ChunkPlan plan = plan_chunks(borders, budget, sink, recent);
  const int first = plan.first, last = plan.last;
  int left = plan.left;
  if (left < 0) return choose_ends(cells, budget, first_share(budget, sink, recent), out);

  // The keys of the others, then the greatest of every group of them: few chunks are taken out of many, and a taken one
  // costs a look at its group and at the greatest.
  constexpr uint64_t kGone = 0, kTaken = 1, kKey = 2;  // what stands in a chunk's place; a key is that much more
  const size_t others = size_t(last - first), groups = (others + kGroup - 1) / kGroup;
  scratch.resize(others + groups);
  const auto keys = std::span(scratch).first(others), tops = std::span(scratch).subspan(others);
  const auto find_top = [&](size_t g) {
    uint64_t top = 0;
    for (size_t i = g * kGroup; i < std::min(others, (g + 1) * kGroup); ++i) top = std::max(top, keys[i]);
    tops[g] = top;
  };
  for (size_t i = 0; i < others; ++i) keys[i] = score_key(scores[size_t(first) + i], first + int(i)) + kKey;
  for (size_t g = 0; g < groups; ++g) find_top(g);
  for (;;) {
    uint64_t best = 0;
    for (uint64_t top : tops) best = std::max(best, top);
    if (best < kKey) break;
    const int place = place_of(best - kKey);
    if (length(place) <= left) {
      left -= length(place);
      keys[size_t(place - first)] = kTaken;
      find_top(size_t(place - first) / kGroup);
    } else {  // the budget is nearly full: keep what still fits, often nothing
      for (uint64_t& key : keys)
        if (key >= kKey && length(place_of(key - kKey)) > left) key = kGone;
      for (size_t g = 0; g < groups; ++g) find_top(g);
    }
  }
  if (left == budget) return choose_ends(cells, budget, first_share(budget, sink, recent), out);
  append_cells(0, borders[size_t(first)], out);
  for (int c = first; c < last; ++c)
    if (keys[size_t(c - first)] == kTaken) append_cells(borders[size_t(c)], borders[size_t(c) + 1], out);
  append_cells(borders[size_t(last)], cells, out);
}

}  // namespace sx
