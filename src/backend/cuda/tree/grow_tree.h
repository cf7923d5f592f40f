// Device-side tree expansion (backend/tree_growth.h): the state of a tree, and the kernel that turns the top-k tokens
// after the nodes just run into the next level and its step.
#pragma once
#include "backend/cuda/runtime/device.h"
#include "backend/cuda/runtime/views.h"
#include "backend/tree_growth.h"
#include "backend/ops.h"

namespace sx::cuda {

inline constexpr int kLevelRows = 16;     // of a pass at most, and of a tile
inline constexpr int kUsualRows = 8;      // more cost a pass some 7 % and have not been seen to bring as much
inline constexpr int kLevelBranch = 128;  // children of a node, and candidates to choose them from
inline constexpr int kLevelNodes = 511;   // that count in the end
inline constexpr int kLevelDepth = 63;
inline constexpr int kTreeGrown = 8192;  // nodes of a tree before it is cut, the root included
static_assert(kLevelRows <= kTileRows);

// What a tree is grown by; sent for each.
struct TreeGrowthPlan {
  int32_t nodes, depth, branch, rows;
  float dead, level_cost, threshold;
  int32_t while_it_pays, with_costs;
  int32_t slot, history;
  int32_t top_k, noise;  // of TreeGrowthSampling, where candidates are reweighed
  float temperature, top_p;
  double least;
  uint64_t seed, position;
  int32_t positions[kLevelDepth];
  float verify_cost[kLevelNodes + 1];
};

// Between the kernels of one tree.
struct TreeGrowthState {
  double sum, gain;
  float floor;
  int32_t level;                // deepest there is
  int32_t size, ran;            // nodes there are, nodes that were run
  int32_t frontier, first;      // nodes that are being run, the first of them
  int32_t counted;              // scores in `best`
  float scores[kLevelRows];     // of the frontier
  int32_t parents[kLevelRows];  // rows of the pass before
  float best[kLevelNodes + 1];  // falling
};

struct LevelNode {
  Token token;
  int32_t parent;
  float score;
  int32_t unused;
};

// In the host's memory, written by the device as levels come; the size last.
struct TreeGrowthResult {
  int32_t size, ran, passes, unused;
  LevelNode node[kTreeGrown];                     // from 1 on
  int32_t order[kLevelRows * (kLevelDepth - 1)];  // nodes that were run
};

// The step's integers, to be written. As many outputs as rows, one tile.
struct TreeGrowthStep {
  Token* tokens;
  int32_t *positions, *outputs;
  RowInfo* rows;
  uint64_t* ancestors;
  RowTile* tile;
  int count;  // padded rows
};

struct GrowCall {
  const TreeGrowthPlan* plan;
  TreeGrowthState* state;
  TreeGrowthResult* result;  // a device address of the host's memory
  Candidate* candidates;     // [frontier, each]
  int each;
  const Token* map;  // or null
  TreeGrowthStep step;
  cudaGraphConditionalHandle loop;
  bool begins;          // the candidates are those after the root
  bool in_loop = true;  // false: no graph is to be told (result->size tells)
};
void grow_level(const GrowCall& call, cudaStream_t stream);
// Before it, for requests that sample: the candidates of so many rows by TreeGrowthSampling.
void reweigh_candidates(const GrowCall& call, int rows, cudaStream_t stream);

// Rows that a level may have; 0: this driver's graphs have no loops.
int most_level_rows();

}  // namespace sx::cuda
