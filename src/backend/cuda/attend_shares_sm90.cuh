// Attention of decode and verification on Hopper: which query rows and which tiles of cells a warpgroup works on.
#pragma once
#include "backend/cuda/attend_rows.cuh"

namespace sx::cuda {

inline constexpr int kGroupQueries = 64;  // query rows of a warpgroup

// What a warpgroup has to do: up to 64 query rows (row and head of the group) of a tile of rows, over some tiles of
// cells.
struct GroupWork {
  RowTile rows;
  int first_query, begin, tiles;  // tiles == 0: nothing
  bool half;                      // of the last tile only the first block is there
};

// Of units [first_unit, end_unit).
__device__ __forceinline__ GroupWork find_work(const AttendBody& body, int piece, int first_unit, int end_unit) {
  GroupWork work{};
  const int tile = piece / body.parts;
  if (tile >= body.tile_count) return work;
  work.rows = body.tiles[tile];
  work.first_query = piece % body.parts * kGroupQueries;
  if (work.first_query >= work.rows.rows * body.group) return work;
  // No row sees a block below `begin`, nor one from `end` on; all between are committed.
  const int begin = max(unit_begin(first_unit) * kTileBlocks, first_seen(work.rows.history, body.window) / kAttendBlock);
  const int end = min(unit_begin(end_unit) * kTileBlocks, body_end(work.rows.history + kMaxDepth) / kAttendBlock);
  if (end <= begin) return work;
  work.begin = begin / kTileBlocks;
  work.tiles = (end + kTileBlocks - 1) / kTileBlocks - work.begin;
  work.half = end % kTileBlocks != 0;
  return work;
}

// The work of a thread block in a run of units. The order of all its tiles: those of the left warpgroup, then those of
// the right one unless they are the same.
struct PairWork {
  GroupWork left, right;
  int right_first, all, kv_head;
  bool together;
};

__device__ __forceinline__ int count_pairs(const AttendBody& body) { return (body.tile_count * body.parts + 1) / 2; }

// `item`: of kv heads and pairs of pieces.
__device__ __forceinline__ PairWork find_pair(const AttendBody& body, int item, int first_unit, int end_unit) {
  const int pairs = count_pairs(body), pair = item % pairs;
  PairWork work{};
  work.kv_head = item / pairs;
  work.left = find_work(body, 2 * pair, first_unit, end_unit);
  work.right = find_work(body, 2 * pair + 1, first_unit, end_unit);
  work.all = work.left.tiles;
  work.together = work.left.tiles > 0 && work.right.tiles > 0 && work.left.rows.slot == work.right.rows.slot &&
                  work.left.rows.history == work.right.rows.history;
  if (!work.together) {
    work.right_first = work.left.tiles;
    work.all = work.left.tiles + work.right.tiles;
  }
  return work;
}

// What a thread block does of all items: they lie one behind the other, each as long as the tiles that the sequences of
// the step see, and are cut into shares: every item into some that end where units end, if that is not much more than an
// equal share for everybody. A unit belongs to the share that its first tile is in.
struct Share {
  int low, tiles;  // an item is tiles [low, low + tiles)
  int now, end;
  __device__ __forceinline__ explicit Share(const AttendBody& body) {
    int first = INT32_MAX, last = 0;
    for (int i = 0; i < body.tile_count; ++i) {
      const RowTile rows = body.tiles[i];
      if (rows.rows == 0) continue;
      first = min(first, first_seen(rows.history, body.window) / kTileCells);
      last = max(last, (body_end(rows.history + kMaxDepth) + kTileCells - 1) / kTileCells);
    }
    low = first;
    tiles = max(last - first, 0);
    now = end = 0;
    if (tiles == 0) return;
    const int items = body.range_heads / body.group * count_pairs(body), all = items * tiles;
    const int blocks = int(gridDim.x), block = int(blockIdx.x), share = all / blocks, more = all % blocks;
    const int unit = unit_of(last - 1), longest = unit_begin(unit + 1) - unit_begin(unit), parts = blocks / items;
    const int even = parts > 0 ? ((tiles + parts - 1) / parts + longest - 1) / longest * longest : INT32_MAX;
    if (even > share + longest) {
      now = share * block + min(block, more);
      end = now + share + (block < more ? 1 : 0);
    } else if (block < items * parts) {
      now = block / parts * tiles + min(block % parts * even, tiles);
      end = block / parts * tiles + min(block % parts * even + even, tiles);
    }
  }
  // The next run of units, of one item.
  __device__ __forceinline__ bool next(int& item, int& first_unit, int& end_unit) {
    if (now >= end) return false;
    item = now / tiles;
    const int begin = low + now % tiles, length = min(end - now, low + tiles - begin);
    first_unit = begin == low ? unit_of(low) : unit_of(begin - 1) + 1;
    end_unit = unit_of(begin + length - 1) + 1;
    now += length;
    return true;
  }
};

}  // namespace sx::cuda
