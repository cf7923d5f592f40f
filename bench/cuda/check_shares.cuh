// How attend_rows on Hopper divides its work among thread blocks, gone through on the host for random steps: every tile
// of cells is done exactly once, every unit gets exactly one (m, l), and a state of several units is the beginning of a
// section. Part of check_attend.cu.
#pragma once
#include <cstdio>
#include <vector>

#include "backend/cuda/attention/decode_partition_sm90.cuh"
#include "check_attend.cuh"

namespace sx::cuda {

struct ShareCheck {
  static constexpr int kTiles = 1200, kUnits = 200;
  struct Piece {
    std::vector<int> tiles = std::vector<int>(kTiles);       // how often done
    std::vector<int> states = std::vector<int>(kUnits, -1);  // units in it; 0: empty; -1: not written
  };
  AttendBody body{};
  std::vector<RowTile> tiles;
  int failures = 0;

  void fail(const char* what, int a, int b) {
    if (++failures <= 4) std::printf("FAILED shares: %s (%d, %d), window %d\n", what, a, b, body.window);
  }

  void walk(const GroupWork& work, Piece& piece) {
    if (work.tiles == 0) return;
    UnitWalk walk(work, body.window);
    int count = 0;
    for (int tile = work.begin; tile < work.begin + work.tiles; ++tile) {
      ++piece.tiles[size_t(tile)];
      const bool last = tile + 1 == work.begin + work.tiles;
      if (unit_of(tile) != walk.unit) fail("tile of another unit", tile, walk.unit);
      if (!last && tile + 1 != walk.border) continue;
      if (walk.opens()) count = 0;
      ++count;
      const auto write = [&](int unit, int what) {
        if (piece.states[size_t(unit)] != -1) fail("state written twice", unit, what);
        piece.states[size_t(unit)] = what;
      };
      if (walk.closes(last)) write(walk.slot, count);
      if (!walk.opens()) write(walk.unit, 0);
      if (!last) walk.advance();
    }
  }

  void verify(const RowTile& rows, const Piece& piece) {
    const int low = first_seen(rows.history, body.window), limit = body_end(rows.history + kMaxDepth);
    const int first = first_tile(rows.history, body.window);
    const int end = low / kAttendBlock < limit / kAttendBlock ? (limit + kTileCells - 1) / kTileCells : first;
    for (int tile = 0; tile < kTiles; ++tile) {
      const int wanted = tile >= first && tile < end ? 1 : 0;
      if (piece.tiles[size_t(tile)] != wanted) fail("tile done so often", tile, piece.tiles[size_t(tile)]);
    }
    const int first_unit = unit_of(first), end_unit = first < end ? unit_of(end - 1) + 1 : first_unit;
    for (int unit = 0; unit < kUnits; ++unit) {
      const bool inside = unit >= first_unit && unit < end_unit;
      if (inside != (piece.states[size_t(unit)] >= 0)) fail("state", unit, piece.states[size_t(unit)]);
    }
    for (int unit = first_unit, units; unit < end_unit; unit += units) {
      units = std::max(piece.states[size_t(unit)], 1);
      if (piece.states[size_t(unit)] < 1) fail("no state", unit, piece.states[size_t(unit)]);
      if (units > 1 && unit % kSectionUnits != 0 && unit != first_unit)
        fail("not the beginning of a section", unit, units);
      if (unit / kSectionUnits != (unit + units - 1) / kSectionUnits) fail("more than a section", unit, units);
      for (int i = unit + 1; i < unit + units; ++i) {
        if (piece.states[size_t(i)] != 0) fail("joined, but not empty", i, piece.states[size_t(i)]);
      }
    }
  }

  void check_step() {
    tiles.clear();
    body.window = below(3) != 0 ? 0 : 1 + below(9000);
    body.group = 1 << below(4);
    const int kv_heads = 1 + below(8), limit = below(8) != 0 ? 20000 : 140000;
    int rows = 0, longest = 0;
    for (int i = 1 + below(3); i > 0; --i) {
      const int history = below(limit), count = 1 + below(70);
      for (int row = 0; row < count; row += kTileRows) {
        tiles.push_back({rows + row, std::min(kTileRows, count - row), i, history});
      }
      if (below(4) == 0) tiles.push_back({0, 0, 0, 0});
      rows += count;
      longest = std::max(longest, history);
    }
    body.tiles = tiles.data();
    body.tile_count = int(tiles.size());
    body.row_count = rows;
    body.range_heads = kv_heads * body.group;
    body.parts = (std::min(rows, kTileRows) * body.group + kGroupQueries - 1) / kGroupQueries;
    body.units = units_of_blocks(body_end(longest + below(3) * 1000 + kMaxDepth) / kAttendBlock);
    const int pieces = body.tile_count * body.parts;
    for (bool pairs : {true, false}) {
      std::vector<Piece> done(size_t(pieces * kv_heads + 1));
      if (pairs) {
        const int most = count_pairs(body) * kv_heads * body.units,
                  blocks = std::min(most, below(2) != 0 ? 132 : 1 + below(300));
        for (int block = 0; block < blocks; ++block) {
          Share share(body, block, blocks);
          for (int item, first, end; share.next(item, first, end);) {
            const PairWork work = find_pair(body, item, first, end);
            const int piece = work.kv_head * pieces + 2 * (item % count_pairs(body));
            walk(work.left, done[size_t(piece)]);
            walk(work.right, done[size_t(piece + 1)]);
          }
        }
      } else {
        for (int at = 0; at < pieces * kv_heads * body.units; ++at) {
          const int unit = at / (pieces * kv_heads);
          walk(find_work(body, at % pieces, unit, unit + 1), done[size_t(at % (pieces * kv_heads))]);
        }
      }
      for (int at = 0; at < pieces * kv_heads; ++at) {
        const RowTile& rows_of = tiles[size_t(at % pieces / body.parts)];
        if (at % pieces % body.parts * kGroupQueries < rows_of.rows * body.group) verify(rows_of, done[size_t(at)]);
      }
    }
  }
};

}  // namespace sx::cuda
