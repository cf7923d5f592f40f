// Which chunks of a history to keep by their scores, as a function of lengths and scores. Choosing works on keys: score
// and place in one integer, so that comparing is cheap, total and without ties.
#pragma once
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace sx {

// The order of floats as integers: greater is better, -0 is 0, NaN is below all.
inline uint32_t score_order(float score) {
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  return score != score ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
}
// Greater is better; of equal scores the later one.
inline uint64_t score_key(float score, int place) { return uint64_t(score_order(score)) << 32 | uint32_t(place); }
inline int place_of(uint64_t key) { return int(uint32_t(key)); }

inline size_t choice_scratch(size_t scores) { return scores + scores / 64 + 1; }

// What the borders alone decide, if there are more than `budget` cells: chunks [0, first) have cells below `sink`,
// those from `last` on some of the last `recent`; `left` cells may be others', below 0 if not even these fit.
struct ChunkPlan {
  int first = 0, last = 0, left = 0;
};
ChunkPlan plan_chunks(std::span<const int32_t> borders, int budget, int sink, int recent);

// The same for chunks of one length, of which the last may be shorter: where `recent` is not 0, all that the scores
// decide is which `take` of the chunks [first, last) are chosen, so that the number of cells is known without them.
struct EvenPlan {
  int first = 0, last = 0, take = 0;
  int chunk = 0, count = 0;  // cells of a chunk, of the choice
};
// None where choose_chunks() does not choose in this way.
std::optional<EvenPlan> plan_even_chunks(std::span<const int32_t> borders, int budget, int sink, int recent);

// Whole chunks by score, best first, until the budget is full (a chunk that no longer fits is left out, smaller ones
// may follow); chunks with cells below `sink` or among the last `recent` come before all others. Where those chunks do
// not all fit, or no chunk at all does, the choice is single cells: the first `sink` and the last cells, `budget` in
// all, of which the last get at least `recent` or half. So there is always a choice if there are cells and a budget.
// With chunks of one length the number of cells is the same for all scores if `recent` is not 0; otherwise it may
// differ. borders: [chunks + 1], the first is 0; scores: [chunks].
void choose_chunks(std::span<const int32_t> borders, std::span<const float> scores, int budget, int sink, int recent,
                   std::vector<int32_t>& out, std::vector<uint64_t>& scratch);

// Parts of choices. What needs no scores: nothing, or everything.
bool choose_plainly(int cells, int budget, std::vector<int32_t>& out);
// `budget` cells, `first` of them at the beginning.
void choose_ends(int cells, int budget, int first, std::vector<int32_t>& out);
// How many of the first cells are kept when only ends are: the last get at least `recent` or half.
int first_share(int budget, int sink, int recent);
void append_cells(int from, int to, std::vector<int32_t>& out);

}  // namespace sx
