// The parts that draft-cache policies are made of: choices of cells as functions of lengths and scores. Every function
// gives ascending cells without repeats, at most `budget` of them, and the same cells for the same input; it gives all
// cells if there are no more than `budget`. Of equal scores the later cell wins, and NaN is the worst score. No
// function allocates once `out` has room for `budget` cells and `scratch` for choice_scratch() entries.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/chunk_choice.h"

namespace sx {

// The chunk borders of a text that grows and is cut: 0, chunk, 2 * chunk, ..., and the number of cells. Only the last
// chunk may be shorter.
class ChunkBorders {
 public:
  explicit ChunkBorders(int chunk) : chunk_(chunk) {}
  // After this, texts of up to `cells` cells allocate nothing.
  void reserve(int cells) { borders_.reserve(size_t(std::max(0, cells) / chunk_) + 2); }
  void resize(int cells);
  std::span<const int32_t> borders() const { return borders_; }  // [chunks + 1]
  int chunks() const { return int(borders_.size()) - 1; }

 private:
  int chunk_;
  std::vector<int32_t> borders_ = {0};
};

// The mean of several rows of scores: scores [count][n] -> out [n].
void mean_of_rows(std::span<const float> scores, int count, std::span<float> out);
// Divides each chunk's score by its length: attention mass becomes attention per cell.
void divide_by_length(std::span<const int32_t> borders, std::span<float> scores);

// Chooses the first `sink` and the last cells, `budget` in all. If the budget is no more than `sink`, it is halved
// between the first and the last cells, and an odd cell goes to the last ones.
void choose_recent(int cells, int budget, int sink, std::vector<int32_t>& out);

// Chooses single cells. scores: [cells]. The first `sink` and the last `recent` cells and those with the best scores
// take the budget except for its share `uniform` (rounded down); that share is spread evenly over the cells not chosen:
// the middle ones of as many equal stretches. The choice always has min(cells, budget) cells.
void choose_pruned(std::span<const float> scores, int budget, float uniform, int sink, int recent,
                   std::vector<int32_t>& out, std::vector<uint64_t>& scratch);

// Replaces each score by the mean over `pool` neighbours, as SnapKV does with its votes. The cell itself is the middle
// one, there are fewer neighbours at the ends, and an even `pool` counts as the next odd number. Every mean is a fresh
// sum, so equal neighbourhoods get equal scores.
void smooth(std::span<float> scores, int pool, std::vector<float>& scratch);

// Fills `out` with random numbers in [0, 1] in place of scores: the same for the same seed, round and place.
void random_scores(uint64_t seed, uint64_t round, std::span<float> out);

}  // namespace sx
