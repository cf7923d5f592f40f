// Split-KV decode on Hopper: the partition of the work, i.e. which query rows and which tiles of cells a warpgroup
// works on, and which KV splits (units) it merges. These are plain integers, so that host tests can run the same code.
#pragma once
#include "backend/cuda/attention/decode_mma.cuh"

namespace sx::cuda {

inline constexpr int kGroupQueries = 64;  // query rows of a warpgroup

// a / b and a % b of numbers from 0 on, the quotient below 2^20. On the device this takes a third of the instructions
// of a division; code that runs once per kernel is fetched from memory, so its size counts.
struct Divided {
  int quotient, remainder;
};
__host__ __device__ __forceinline__ Divided divide(int a, int b) {
#ifdef __CUDA_ARCH__
  int quotient = int(__fdividef(float(a), float(b))), remainder = a - quotient * b;  // off by one at most
  if (remainder < 0) --quotient, remainder += b;
  if (remainder >= b) ++quotient, remainder -= b;
  return {quotient, remainder};
#else
  return {a / b, a % b};
#endif
}

// What a warpgroup has to do: up to 64 query rows (row and head of the group) of a tile of rows, over some tiles of
// cells.
struct GroupWork {
  RowTile rows;
  int first_query, begin, tiles;  // tiles == 0: nothing
  bool half;                      // of the last tile only the first block is there
};

// The work of one piece of query rows in KV splits [first_unit, end_unit).
__host__ __device__ __forceinline__ GroupWork find_work(const AttendBody& body, int piece, int first_unit,
                                                        int end_unit) {
  GroupWork work{};
  const Divided place = divide(piece, body.parts);
  if (place.quotient >= body.tile_count) return work;
  work.rows = body.tiles[place.quotient];
  work.first_query = place.remainder * kGroupQueries;
  if (work.first_query >= work.rows.rows * body.group) return work;
  // No row sees a block below `begin`, nor one from `end` on; all between are committed.
  const int begin =
      max(unit_begin(first_unit) * kTileBlocks, first_seen(work.rows.history, body.window) / kAttendBlock);
  const int end = min(unit_begin(end_unit) * kTileBlocks, body_end(work.rows.history + kMaxDepth) / kAttendBlock);
  if (end <= begin) return work;
  work.begin = begin / kTileBlocks;
  work.tiles = (end + kTileBlocks - 1) / kTileBlocks - work.begin;
  work.half = end % kTileBlocks != 0;
  return work;
}

// The tile from which on some row of the sequence sees something. States exist from its unit on.
__host__ __device__ __forceinline__ int first_tile(int history, int window) {
  return first_seen(history, window) / kTileCells;
}

// How a warpgroup walks through the KV splits of its work: whether a split joins the state of the splits before it in
// its group.
struct UnitWalk {
  int unit, border;  // the one at work, and the tile that begins the next
  int slot;          // the unit that the state is stored as, which is the first of the merged ones
  bool merging;      // the state holds everything of the group that lies before and that some row sees
  __host__ __device__ __forceinline__ UnitWalk(const GroupWork& work, int window) {
    unit = slot = unit_of(work.begin);
    border = unit_begin(unit + 1);
    merging = unit % kSectionUnits == 0 || work.begin == first_tile(work.rows.history, window);
  }
  __host__ __device__ __forceinline__ bool opens() const { return unit == slot; }
  __host__ __device__ __forceinline__ bool section_ends() const { return (unit + 1) % kSectionUnits == 0; }
  // `last`: of the work.
  __host__ __device__ __forceinline__ bool closes(bool last) const { return last || !merging || section_ends(); }
  __host__ __device__ __forceinline__ void advance() {
    const bool closed = closes(false);
    merging = merging || section_ends();
    border += unit_tiles(++unit);
    if (closed) slot = unit;
  }
};

// The work of a thread block in a run of KV splits. The order of all its tiles: those of the left warpgroup, then those
// of the right one unless they are the same.
struct PairWork {
  GroupWork left, right;
  int right_first, all, kv_head;
  bool together;
};

// The same tiles for both.
__host__ __device__ __forceinline__ bool go_together(const GroupWork& left, const GroupWork& right) {
  return left.tiles > 0 && right.tiles > 0 && left.rows.slot == right.rows.slot &&
         left.rows.history == right.rows.history;
}

__host__ __device__ __forceinline__ int count_pairs(const AttendBody& body) {
  return (body.tile_count * body.parts + 1) / 2;
}

// `item`: of kv heads and pairs of pieces.
__host__ __device__ __forceinline__ PairWork find_pair(const AttendBody& body, int item, int first_unit, int end_unit) {
  const auto [kv_head, pair] = divide(item, count_pairs(body));
  PairWork work{};
  work.kv_head = kv_head;
#pragma unroll 1
  for (int side = 0; side < 2; ++side) {  // the same instructions for both: they are run once, and come from memory
    const GroupWork found = find_work(body, 2 * pair + side, first_unit, end_unit);
    if (side == 0) work.left = found;
    else work.right = found;
  }
  work.all = work.left.tiles;
  work.together = go_together(work.left, work.right);
  if (!work.together) {
    work.right_first = work.left.tiles;
    work.all = work.left.tiles + work.right.tiles;
  }
  return work;
}

// The part of all items that one thread block works on. Items lie one behind the other, each as long as the tiles that
// the sequences of the step see. The partition cuts every item at ends of KV splits, if that is not much more than an
// equal part for each thread block. A split belongs to the thread block that has its first tile. Whole warps compute
// it, so that all sequences are examined together.
struct Share {
  int low, tiles;  // an item is tiles [low, low + tiles)
  int now, end;
  __host__ __device__ __forceinline__ Share(const AttendBody& body, int block, int blocks) {
    int first = INT32_MAX, last = 0;
#ifdef __CUDA_ARCH__
    const int begin = int(threadIdx.x % 32), step = 32;
#else
    const int begin = 0, step = 1;
#endif
    for (int i = begin; i < body.tile_count; i += step) {
      const RowTile rows = body.tiles[i];
      if (rows.rows == 0) continue;
      first = min(first, first_tile(rows.history, body.window));
      last = max(last, (body_end(rows.history + kMaxDepth) + kTileCells - 1) / kTileCells);
    }
#ifdef __CUDA_ARCH__
    first = __reduce_min_sync(0xffffffffu, first);
    last = __reduce_max_sync(0xffffffffu, last);
#endif
    low = first;
    tiles = max(last - first, 0);
    now = end = 0;
    if (tiles == 0) return;
    const int items = divide(body.range_heads, body.group).quotient * count_pairs(body), all = items * tiles;
    const auto [share, more] = divide(all, blocks);
    const int longest = unit_tiles(unit_of(last - 1)), parts = divide(blocks, items).quotient;  // longest: a power of 2
    const int even = parts > 0 ? (divide(tiles + parts - 1, parts).quotient + longest - 1) & -longest : INT32_MAX;
    if (even > share + longest) {
      now = share * block + min(block, more);
      end = now + share + (block < more ? 1 : 0);
    } else if (block < items * parts) {
      const Divided place = divide(block, parts);
      now = place.quotient * tiles + min(place.remainder * even, tiles);
      end = place.quotient * tiles + min(place.remainder * even + even, tiles);
    }
  }
  // The next run of KV splits of one item.
  __host__ __device__ __forceinline__ bool next(int& item, int& first_unit, int& end_unit) {
    if (now >= end) return false;
    const Divided place = divide(now, tiles);
    item = place.quotient;
    const int begin = low + place.remainder, length = min(end - now, low + tiles - begin);
    first_unit = begin == low ? unit_of(low) : unit_of(begin - 1) + 1;
    end_unit = unit_of(begin + length - 1) + 1;
    now += length;
    return true;
  }
};

}  // namespace sx::cuda
