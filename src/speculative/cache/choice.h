// Which cells to keep: the choosing part of every draft-cache policy, as functions of lengths and scores. All of them
// give ascending cells without repeats, at most `budget`, and the same cells for the same input; all cells if there are
// no more than `budget`. Equal scores go to the later one, NaN is the worst score. Nothing is allocated once `out` has
// room for `budget` cells and `scratch` for choice_scratch() entries.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kv/chunk_choice.h"
#include "speculative/cache/config.h"

namespace sx {

// Chunk borders of a growing text: border 0 is 0, the last one is the number of cells. `ends[token]` is 1 where a token
// ends a sentence (tokens beyond it end none); with sentences, a chunk ends there once it has chunk/2 cells (at least
// 1), and at chunk + chunk/2 at the latest. Only the last chunk may be shorter.
class ChunkBorders {
 public:
  explicit ChunkBorders(int chunk, bool sentences = false) : chunk_(chunk), sentences_(sentences) {}
  void reserve(int cells);  // texts up to this length allocate nothing
  void clear() { borders_.assign(1, 0); }
  void truncate(int cells);  // a chunk that is cut is open again
  // Goes on to `cells` cells; closed chunks never change. `text` holds the token of every cell from the first on, those
  // of earlier calls included (used with sentences only).
  void extend(int cells, std::span<const int32_t> text, std::span<const uint8_t> ends);
  std::span<const int32_t> borders() const { return borders_; }  // [chunks + 1]
  int chunks() const { return int(borders_.size()) - 1; }

 private:
  int chunk_;
  bool sentences_;
  std::vector<int32_t> borders_ = {0};
};

// Scores of several heads and layers made one: scores [count][chunks] -> out [chunks]. The scores come reduced within
// each chunk: kMean divides a chunk's mass by its length; kSum and kMax take masses, or maxima, as they are.
void reduce_scores(std::span<const float> scores, int count, std::span<const int32_t> borders, HeadReduce heads,
                   ChunkReduce chunks, std::span<float> out);

// The first `sink` and the last cells, `budget` in all. A budget of no more than `sink` is halved between the first and
// the last cells (the odd one is the last's).
void choose_recent(int cells, int budget, int sink, std::vector<int32_t>& out);

// Single cells: as choose_chunks() with one cell per chunk and `budget` minus uniform * budget (rounded down) of them by score,
// the first `sink` and last `recent` counted among these; the rest of the budget is spread evenly over those not
// chosen: the middle ones of as many equal stretches. scores: [cells]. Always min(cells, budget) cells.
void choose_pruned(std::span<const float> scores, int budget, float uniform, int sink, int recent,
                   std::vector<int32_t>& out, std::vector<uint64_t>& scratch);

// Votes of SnapKV: each score becomes the mean over `pool` neighbours (itself in the middle, fewer at the ends; an even
// `pool` counts as the next odd one). Every mean is summed anew, so equal neighbourhoods get equal scores.
void smooth(std::span<float> scores, int pool, std::vector<float>& scratch);

// A stand-in for scores, uniform in [0, 1]: the same for the same seed, round and chunk.
void random_scores(uint64_t seed, uint64_t round, std::span<float> out);

}  // namespace sx
