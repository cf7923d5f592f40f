// The rows of the table, made by short loops so that the whole list can be read at once; and the tolerances.
#include "table.h"

#include <fmt/format.h>

#include <array>

#include "base/error.h"

namespace sx::parity {
namespace {

constexpr std::array kWeightTypes = {DType::kF32,    DType::kF16,    DType::kBF16, DType::kQ4_0,  DType::kQ4_1,
                                     DType::kQ5_0,   DType::kQ5_1,   DType::kQ8_0, DType::kQ2_K,  DType::kQ3_K,
                                     DType::kQ4_K,   DType::kQ5_K,   DType::kQ6_K, DType::kMXFP4, DType::kIQ4_NL,
                                     DType::kIQ4_XS, DType::kIQ2_XS, DType::kIQ3_S};
constexpr std::array kKvTypes = {KvTypes(DType::kF32),
                                 KvTypes(DType::kF16),
                                 KvTypes(DType::kBF16),
                                 KvTypes(DType::kQ8_0),
                                 KvTypes(DType::kQ4_0),
                                 KvTypes(DType::kQ4_1),
                                 KvTypes(DType::kQ8_0, DType::kQ4_0),
                                 KvTypes(DType::kBF16, DType::kQ8_0),
                                 KvTypes(DType::kF16, DType::kBF16),
                                 KvTypes(DType::kQ4_1, DType::kF16),
                                 KvTypes(DType::kQ4_0, DType::kQ4_1),
                                 KvTypes(DType::kF32, DType::kQ8_0)};

constexpr bool dtype_is_q4(DType type) { return type == DType::kQ4_0 || type == DType::kQ4_1; }

// Heads of such a store are whole blocks of 32.
constexpr bool has_blocks(const KvTypes& types) {
  const auto one = [](DType type) { return type == DType::kQ8_0 || type == DType::kQ4_0 || type == DType::kQ4_1; };
  return one(types.keys) || one(types.values);
}

OpRow of_types(Op op, const KvTypes& types) {
  OpRow row{.op = op, .type = types.keys};
  if (!types.same()) row.values = types.values;
  return row;
}

struct Shape {
  int in, out;
};

// Odd shapes where the type allows them: inner dimensions are whole blocks, outer ones anything.
std::vector<Shape> linear_shapes(DType type) {
  switch (dtype_info(type).block) {
    case 1: return {{1, 3}, {7, 5}, {33, 17}, {64, 8}, {100, 30}, {576, 33}, {1536, 16}};
    case 32: return {{32, 1}, {64, 5}, {96, 24}, {256, 33}, {576, 64}, {1536, 17}};
    default: return {{256, 1}, {256, 9}, {512, 33}, {1536, 20}};
  }
}

void add_row_ops(std::vector<OpRow>& table) {
  for (const DType type : kWeightTypes) {
    for (const int rows : {1, 3, 17}) {
      const int width = dtype_info(type).block == 1 ? 37 : dtype_info(type).block * 3;
      table.push_back({.op = Op::kEmbed, .type = type, .rows = rows, .in = width});
    }
  }
  for (const int width : {1, 8, 15, 17, 64, 100, 576, 2048}) {
    for (const int rows : {1, 2, 33, 70}) {
      table.push_back({.op = Op::kNorm, .rows = rows, .in = width, .in_place = rows == 2});
      table.push_back({.op = Op::kGlu, .rows = rows, .in = width});
    }
  }
  for (const int dims : {2, 8, 64, 96, 128})
    for (const int rows : {1, 5, 40})
      table.push_back({.op = Op::kRopeTable, .rows = rows, .head_dim = dims, .delta = rows == 5 ? 3 : 0});
  for (int sampling = 0; sampling < kSamplings; ++sampling) {
    for (const int vocab : {1, 5, 31, 300, 3000}) {
      table.push_back({.op = Op::kChoose, .rows = sampling % 2 ? 5 : 2, .in = vocab, .sampling = sampling});
      table.push_back({.op = Op::kDistribution, .rows = 2, .in = vocab, .sampling = sampling});
    }
    for (const int vocab : {5, 31, 33, 300, 3000}) {
      for (int allowed = 1; allowed <= kPatterns; ++allowed) {
        table.push_back(
            {.op = Op::kChoose, .rows = sampling % 2 ? 20 : 3, .in = vocab, .sampling = sampling, .allowed = allowed});
        table.push_back({.op = Op::kDistribution, .rows = 2, .in = vocab, .sampling = sampling, .allowed = allowed});
      }
    }
  }
  for (const int vocab : {1, 5, 31, 300, 1024, 3001})
    for (const int k : {1, 4, 10, 64, vocab})
      if (k <= vocab) table.push_back({.op = Op::kTopK, .rows = k % 3 + 1, .in = vocab, .out = k});
}

void add_linear(std::vector<OpRow>& table) {
  int turn = 0;  // options alternate instead of multiplying the table
  for (const DType type : kWeightTypes) {
    for (const Shape shape : linear_shapes(type)) {
      for (const int rows : {1, 2, 3, 5, 16, 33}) {
        table.push_back({.op = Op::kLinear,
                         .type = type,
                         .rows = rows,
                         .in = shape.in,
                         .out = shape.out,
                         .bias = turn % 2 == 1,
                         .accumulate = turn % 3 == 1,
                         .pad = turn % 5 == 1 ? 3 : 0});
        ++turn;
      }
    }
    for (const int rows : {65, 200}) {
      table.push_back({.op = Op::kLinear, .type = type, .rows = rows, .in = 512, .out = 72, .bias = rows == 65});
    }
    for (const int rows : {1, 4, 9, 64, 130}) {
      const int in = dtype_info(type).block == 256 ? 512 : 288;
      table.push_back({.op = Op::kLinear,
                       .type = type,
                       .rows = rows,
                       .in = in,
                       .out = 21,
                       .bias = rows == 4,
                       .pad = 2,
                       .mixed = true});
    }
  }
}

void add_rope_store(std::vector<OpRow>& table) {
  for (const KvTypes& type : kKvTypes) {
    for (const RopeStyle style : {RopeStyle::kHalves, RopeStyle::kInterleaved}) {
      for (const bool qk_norm : {false, true}) {
        OpRow row = of_types(Op::kRopeStore, type);
        row.style = style, row.qk_norm = qk_norm;
        // the shape of a small Llama, across a block border
        row.rows = 5, row.heads = 9, row.kv_heads = 3, row.head_dim = 64, row.history = 62;
        table.push_back(row);
        row.uncommitted = 4;
        table.push_back(row);
        row.uncommitted = 0;
        row.heads = 4, row.kv_heads = 4, row.dims = 32, row.rows = 1;  // part of the head stays unrotated
        table.push_back(row);
        row.heads = 2, row.kv_heads = 1, row.head_dim = 128, row.dims = 0, row.rows = 3, row.history = 0, row.seqs = 3;
        table.push_back(row);
        if (has_blocks(type)) continue;
        row.heads = 6, row.kv_heads = 2, row.head_dim = 12, row.dims = 8, row.rows = 17, row.seqs = 1;
        table.push_back(row);
      }
    }
  }
}

void add_attend(std::vector<OpRow>& table) {
  for (const KvTypes& type : kKvTypes) {
    OpRow base = of_types(Op::kAttend, type);
    base.heads = 6, base.kv_heads = 2, base.head_dim = 32;
    // Every row for the types with kernels of their own, every third or eleventh for the others.
    const bool plain = type.same() && !dtype_is_q4(type.keys);
    const int step = type == DType::kF32 || type == DType::kBF16 ? 1 : plain ? 3 : 11;
    int turn = 0;
    const auto add = [&](auto change) {
      OpRow row = base;
      change(row);
      if (turn++ % step == 0) table.push_back(row);
    };
    for (const int head_dim : {8, 16, 24, 32, 40, 64, 80, 96, 112, 128, 192, 256}) {
      if (has_blocks(type) && head_dim % 32 != 0) continue;
      for (const int history : {0, 70}) {
        add([&](OpRow& r) { r.head_dim = head_dim, r.history = history, r.rows = history ? 3 : 1; });
      }
    }
    for (const int ratio : {1, 2, 3, 4, 5, 7, 8}) {
      for (const int rows : {1, 2, 7}) {
        add([&](OpRow& r) { r.heads = 2 * ratio, r.rows = rows, r.history = 129, r.tree = rows == 7; });
      }
    }
    for (const int history : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 200, 511, 512, 513, 1023, 1024, 1025, 1100}) {
      for (const int rows : {1, 5}) add([&](OpRow& r) { r.history = history, r.rows = rows; });
    }
    for (const int history : {0, 1, 60, 64, 100, 505, 512, 1020}) {
      for (const int rows : {4, 16, 33, 70}) {
        add([&](OpRow& r) { r.history = history, r.rows = rows, r.tree = true; });
      }
    }
    for (const int window : {1, 2, 7, 64, 65, 100, 512, 600}) {
      for (const int history : {90, 640, 1030}) {
        add([&](OpRow& r) { r.window = window, r.history = history, r.rows = 6, r.tree = history == 90; });
      }
      add([&](OpRow& r) { r.window = window, r.history = 577, r.rows = 66, r.tree = true; });
    }
    for (const int rows : {1, 4, 70}) {
      for (const int history : {0, 61, 500}) {
        add([&](OpRow& r) { r.seqs = 3, r.rows = rows, r.history = history; });
        add([&](OpRow& r) { r.seqs = 2, r.rows = rows, r.history = history, r.tree = true, r.window = 80; });
      }
    }
    for (const int uncommitted : {1, 5, 40, 70}) {  // trees and chains that grow over several steps
      for (const int history : {0, 62, 450, 1000}) {
        add([&](OpRow& r) { r.uncommitted = uncommitted, r.rows = 9, r.history = history, r.tree = true; });
        add([&](OpRow& r) { r.uncommitted = uncommitted, r.rows = 3, r.history = history; });
        add([&](OpRow& r) {
          r.uncommitted = uncommitted, r.rows = 20, r.history = history, r.tree = true, r.seqs = 2, r.window = 50;
        });
      }
    }
    for (const int history : {0, 1, 62, 63, 64, 127, 450, 1023}) {  // rows that only look
      for (const int rows : {2, 16, 70}) add([&](OpRow& r) { r.history = history, r.rows = rows, r.reads = true; });
    }
    if (type !=
        DType::
            kF32) {  // long histories across the borders that GPU kernels have, with trees and groups of several sizes
      for (const int history : {2040, 4100}) {
        for (const int heads : {2, 6, 8}) {
          OpRow row = base;
          row.heads = heads, row.head_dim = heads == 2 ? 256 : heads == 6 ? 96 : 64, row.rows = heads == 6 ? 66 : 9;
          row.history = history, row.tree = true;
          table.push_back(row);
        }
      }
    }
    if (type == DType::kBF16 ||
        type == DType::kF16) {  // scores so large that GPU kernels weigh them relative to something else than 0
      for (const int rows : {3, 40}) {
        OpRow row = base;
        row.heads = 8, row.head_dim = 128, row.rows = rows, row.history = 2600, row.tree = true, row.loud = 16;
        table.push_back(row);
        row.head_dim = 64, row.window = 700;
        table.push_back(row);
      }
    }
    for (const int head_dim : {32, 64, 96, 128, 256}) {  // both, and each alone, for every kernel of a GPU
      for (const int rows : {1, 20}) {
        for (const int soft_cap : {0, 2}) {
          OpRow row = base;
          row.head_dim = head_dim, row.rows = rows, row.tree = rows > 1, row.history = 150, row.soft_cap = soft_cap;
          row.heads = 4, row.sinks = soft_cap == 0 || rows > 1;
          if (turn++ % step == 0) table.push_back(row);
        }
      }
    }
    for (const int history : {0, 64, 2600}) {
      add([&](OpRow& r) {
        r.head_dim = 64, r.rows = 12, r.history = history, r.tree = true, r.seqs = 2, r.window = 128, r.sinks = true;
      });
      add([&](OpRow& r) {
        r.head_dim = 256, r.rows = 9, r.history = history, r.tree = true, r.window = 700, r.soft_cap = 5, r.loud = 4;
      });
    }
    add([&](OpRow& r) { r.rows = 200, r.history = 0; });  // prefill
    add([&](OpRow& r) { r.rows = 150, r.history = 450; });
  }
}

void add_kv_move(std::vector<OpRow>& table) {
  for (const KvTypes& type : kKvTypes) {
    for (const int delta : {0, 1, -1, 700}) {
      for (const RopeStyle style : {RopeStyle::kHalves, RopeStyle::kInterleaved}) {
        for (const bool same_slot : {false, true}) {
          OpRow row = of_types(Op::kKvMove, type);
          row.rows = 40, row.heads = 4, row.kv_heads = 2, row.head_dim = 64, row.history = 150;
          row.dims = delta == 1 ? 32 : 0, row.style = style, row.delta = delta, row.same_slot = same_slot;
          table.push_back(row);
        }
      }
    }
  }
}

// Odd counts, places inside and across blocks of 64 cells and extents of 1,024, forwards and backwards, one cell and
// none less.
void add_kv_cells(std::vector<OpRow>& table) {
  for (const KvTypes& type : kKvTypes) {
    for (const int head_dim : {12, 64, 96, 128}) {
      if (has_blocks(type) && head_dim % 32 != 0) continue;
      OpRow base = of_types(Op::kKvCells, type);
      base.heads = 4, base.kv_heads = 2, base.head_dim = head_dim, base.history = 150;
      for (const bool same_slot : {false, true}) {
        const auto add = [&](int rows, int to, int history) {
          OpRow row = base;
          row.rows = rows, row.delta = to, row.history = history, row.same_slot = same_slot;
          table.push_back(row);
        };
        add(1, 63, 70);
        add(7, 0, 30);
        add(65, 30, 150);
        add(101, 14, 141);
        if (head_dim == 64) add(301, 1000, 1302);
      }
    }
  }
}

void add_kv_score(std::vector<OpRow>& table) {
  int turn = 0;
  for (const KvTypes& type : kKvTypes) {
    for (int kind = 0; kind < 4; ++kind) {
      for (const int history : {20, 700}) {
        for (const int layers : {1, 2}) {
          const int head_dim = turn % 3 == 0 ? 64 : turn % 3 == 1 ? 128 : 96;
          OpRow row = of_types(Op::kKvScore, type);
          row.rows = layers, row.heads = turn % 2 ? 6 : 4, row.kv_heads = 2, row.head_dim = head_dim;
          row.history = history, row.kind = kind, row.mean = ++turn % 4 == 0;
          table.push_back(row);
        }
      }
    }
  }
}

void add_kv_retrieve(std::vector<OpRow>& table) {
  int turn = 0;
  for (const KvTypes& type : kKvTypes) {
    for (const int chunk : {32, 16, 8, 48, 1}) {  // on a device those of 16 cells and more go another way
      for (const bool ties : {false, true}) {
        // Keys of 4 bits can tell few chunks apart. Numbers of chunks are no multiples of 7 (see RetrieveProblem).
        const bool few = dtype_is_q4(type.keys);
        if (few && chunk == 1) continue;
        const int history = few          ? chunk * 14 + 3
                            : chunk == 1 ? 61
                            : chunk == 8 ? 345
                                         : 1217 - turn,
                  head_dim = turn % 3 == 0   ? 64
                             : turn % 3 == 1 ? 128
                                             : 96;
        OpRow row = of_types(Op::kKvRetrieve, type);
        row.rows = 1 + turn % 2, row.heads = turn % 2 ? 6 : 4, row.kv_heads = 2, row.head_dim = head_dim, row.dims = 32;
        row.style = turn % 5 == 0 ? RopeStyle::kInterleaved : RopeStyle::kHalves;
        row.history = history, row.tree = turn % 4 == 1, row.delta = turn % 7 == 3, row.kind = turn % 5 == 2;
        row.chunk = chunk, row.budget = history / 3, row.sink = turn % 3 ? 4 : 0, row.recent = 1 + turn % 11;
        row.ties = ties;
        table.push_back(row);
        OpRow heads = table.back();
        heads.rows = 2, heads.each_head = true;
        table.push_back(heads);
        ++turn;
      }
    }
  }
}

// Shapes of SmolLM2-135M, for the benchmark.
void add_large(std::vector<OpRow>& table) {
  for (const int rows : {1, 4, 16, 64, 512}) {
    for (const Shape shape : {Shape{576, 960}, {576, 576}, {576, 3072}, {1536, 576}}) {
      table.push_back(
          {.op = Op::kLinear, .type = DType::kQ4_1, .rows = rows, .in = shape.in, .out = shape.out, .large = true});
    }
    if (rows <= 16) {
      table.push_back({.op = Op::kLinear, .type = DType::kQ8_0, .rows = rows, .in = 576, .out = 49152, .large = true});
    }
    table.push_back({.op = Op::kNorm, .rows = rows, .in = 576, .large = true});
    table.push_back({.op = Op::kGlu, .rows = rows, .in = 1536, .large = true});
    table.push_back({.op = Op::kRopeTable, .rows = rows, .head_dim = 64, .large = true});
  }
  for (const DType type : kWeightTypes) {
    for (const int rows : {1, 8, 128}) {
      table.push_back({.op = Op::kLinear, .type = type, .rows = rows, .in = 1536, .out = 1536, .large = true});
    }
  }
  const OpRow shape = {.op = Op::kAttend, .heads = 9, .kv_heads = 3, .head_dim = 64, .large = true};
  for (const KvTypes& type : kKvTypes) {
    for (const int rows : {1, 4, 16}) {
      for (const int history : {500, 2000, 8000}) {
        OpRow row = shape;
        row.type = type.keys, row.values = of_types(row.op, type).values;
        row.rows = rows, row.history = history, row.tree = rows == 16;
        table.push_back(row);
      }
    }
    OpRow row = shape;
    row.type = type.keys, row.values = of_types(row.op, type).values, row.rows = 512;
    table.push_back(row);
    for (const int stored : {1, 16, 512}) {
      row.op = Op::kRopeStore, row.rows = stored;
      table.push_back(row);
    }
  }
  for (const int delta : {0, 7}) {
    table.push_back({.op = Op::kKvMove,
                     .type = DType::kBF16,
                     .rows = 512,
                     .heads = 9,
                     .kv_heads = 3,
                     .head_dim = 64,
                     .history = 2000,
                     .delta = delta,
                     .large = true});
  }
  for (const int sampling : {0, 1, 3, 8, 9}) {  // greedy, all tokens, top-p, with penalties, the default settings
    table.push_back({.op = Op::kChoose, .rows = 1, .in = 49152, .sampling = sampling, .large = true});
    table.push_back({.op = Op::kDistribution, .rows = 1, .in = 49152, .sampling = sampling, .large = true});
  }
  for (const int vocab : {49152, 151936})
    for (const int rows : {1, 8})
      for (const int k : {1, 10, 64})
        table.push_back({.op = Op::kTopK, .rows = rows, .in = vocab, .out = k, .large = true});
}

std::vector<OpRow> make_table() {
  std::vector<OpRow> table;
  add_row_ops(table);
  add_linear(table);
  add_experts(table, kWeightTypes);
  add_rope_store(table);
  add_attend(table);
  add_kv_move(table);
  add_kv_cells(table);
  add_kv_score(table);
  add_kv_retrieve(table);
  add_large(table);
  return table;
}

}  // namespace

const char* op_name(Op op) {
  switch (op) {
    case Op::kEmbed: return "embed";
    case Op::kNorm: return "norm";
    case Op::kLinear: return "linear";
    case Op::kRopeTable: return "rope_table";
    case Op::kRopeStore: return "rope_store";
    case Op::kAttend: return "attend";
    case Op::kGlu: return "glu";
    case Op::kExperts: return "experts";
    case Op::kKvMove: return "kv_move";
    case Op::kKvCells: return "kv_cells";
    case Op::kKvScore: return "kv_score";
    case Op::kKvRetrieve: return "kv_retrieve";
    case Op::kChoose: return "choose";
    case Op::kDistribution: return "distribution";
    case Op::kTopK: return "top_k";
    case Op::kCount: break;
  }
  SX_ASSERT(false);
  return "";
}

std::span<const OpRow> op_table() {
  static const std::vector<OpRow> table = make_table();
  return table;
}

std::string row_name(const OpRow& row) {
  std::string name = op_name(row.op);
  const bool sampled = row.op == Op::kChoose || row.op == Op::kDistribution;
  const bool plain = row.op == Op::kNorm || row.op == Op::kGlu || row.op == Op::kRopeTable || row.op == Op::kTopK;
  if (!plain && !sampled) name += fmt::format("/{}", kv_types_name(row.kv_types()));
  if (row.op == Op::kLinear) name += fmt::format("/{}x{}", row.in, row.out);
  else if (row.in) name += fmt::format("/{}", row.in);
  if (row.heads) name += fmt::format("/h{}k{}d{}", row.heads, row.kv_heads, row.head_dim);
  else if (row.head_dim) name += fmt::format("/d{}", row.head_dim);
  if (row.heads && row.dims) name += fmt::format("r{}", row.dims);
  if (row.heads) name += fmt::format("/history{}", row.history);
  if (row.op == Op::kTopK) name += fmt::format("/k{}", row.out);
  name += fmt::format("/rows{}", row.rows);
  if (row.seqs > 1) name += fmt::format("x{}", row.seqs);
  if (row.bias) name += "+bias";
  if (row.accumulate) name += "+accumulate";
  if (row.pad) name += fmt::format("+pad{}", row.pad);
  if (row.mixed) name += "+mixed";
  if (row.in_place) name += "+in_place";
  if (row.style == RopeStyle::kInterleaved) name += "+interleaved";
  if (row.qk_norm) name += "+qk_norm";
  if (row.tree) name += "+tree";
  if (row.uncommitted) name += fmt::format("+uncommitted{}", row.uncommitted);
  if (row.window) name += fmt::format("+window{}", row.window);
  if (row.soft_cap) name += fmt::format("+soft_cap{}", row.soft_cap);
  if (row.sinks) name += "+sinks";
  if (row.reads) name += "+reads";
  if (row.loud > 1) name += fmt::format("+loud{}", row.loud);
  if (row.delta) name += fmt::format("+{}{}", row.op == Op::kKvCells ? "to" : "delta", row.delta);
  if (row.same_slot) name += "+same_slot";
  if (row.op == Op::kKvScore) name += fmt::format("+kind{}{}", row.kind, row.mean ? "+mean" : "");
  if (row.op == Op::kKvRetrieve)
    name += fmt::format("+kind{}+chunk{}+budget{}{}", row.kind, row.chunk, row.budget, row.ties ? "+ties" : "") +
            (row.each_head ? "+heads" : "");
  if (row.experts)
    name +=
        fmt::format("+ffn{}+{}of{}+kind{}{}", row.out, row.used, row.experts, row.kind, row.clipped ? "+clipped" : "");
  if (sampled) name += fmt::format("+sampling{}", row.sampling);
  if (row.allowed) name += fmt::format("+allowed{}", row.allowed);
  return name;
}

// By the coarser of the two types.
Tolerance of_cells(const OpRow& row) {
  const KvTypes types = row.kv_types();
  const auto has = [&](DType type) { return types.keys == type || types.values == type; };
  const bool rounds_again = (row.op == Op::kKvMove && row.delta != 0) || row.op == Op::kKvRetrieve;
  // Where a rotated key is rounded again, an element may fall on the other side of a border, and with q4_0 another
  // element may become the largest of its block and give the scale the other sign: a whole step, 1/8 of the largest.
  if (dtype_is_q4(types.keys) && rounds_again)
    return row.op == Op::kKvRetrieve ? Tolerance{0.12, 0.7} : Tolerance{6e-2, 0.4};
  if (dtype_is_q4(types.keys) && row.op == Op::kKvScore) return {6e-3, 4e-2};  // read as bf16 at worst
  // Queries may be rounded to 8 bits, and values in other groups; what is retrieved holds a few large numbers.
  if (has_blocks(types)) return row.op == Op::kKvRetrieve ? Tolerance{5e-2, 0.3} : Tolerance{2e-2, 0.12};
  if (has(DType::kBF16)) return {6e-3, 4e-2};  // queries and weights may be rounded to bf16 too
  if (has(DType::kF16)) return {1e-4, 1e-3};   // a key may fall on the other side of a rounding border
  // Shares are measured by themselves, and exponentials need not be exact to the last bit.
  return row.op == Op::kKvScore ? Tolerance{3e-5, 1e-4} : Tolerance{2e-6, 2e-5};
}

Tolerance tolerance(const OpRow& row) {
  switch (row.op) {
    case Op::kEmbed:
    case Op::kChoose: return {0, 0};
    case Op::kDistribution: return {1e-7, 1e-7};  // of the row's largest
    case Op::kTopK: return {1e-5, 1e-5};          // of log-probabilities; tokens are exact
    case Op::kNorm: return {1e-6, 5e-6};
    case Op::kGlu: return {1e-6, 5e-6};
    case Op::kRopeTable: return {1e-7, 3e-7};
    case Op::kLinear:
      // Quantised: activations are rounded to 8 bits, by half of 1/127 of their block's largest at most.
      return dtype_is_quantised(row.type) || row.mixed ? Tolerance{8e-3, 4e-2} : Tolerance{2e-6, 2e-5};
    case Op::kExperts: return dtype_is_quantised(row.type) || row.mixed ? Tolerance{2e-2, 0.15} : Tolerance{5e-6, 5e-5};
    case Op::kRopeStore:
    case Op::kAttend:
    case Op::kKvMove:
    case Op::kKvCells:
    case Op::kKvScore:
    case Op::kKvRetrieve: return of_cells(row);
    case Op::kCount: break;
  }
  SX_ASSERT(false);
  return {};
}

}  // namespace sx::parity
