// The op parity table: one list of op x shape x type x options. The parity test runs every row on every backend against
// the reference, the invariance test runs the same rows in other batch and with other threads, and the benchmark
// times them.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/types.h"
#include "tensor/dtype.h"
#include "tensor/rope_style.h"

namespace sx::parity {

enum class Op {
  kEmbed,
  kNorm,
  kLinear,
  kRopeTable,
  kRopeStore,
  kAttend,
  kGlu,
  kExperts,
  kKvMove,
  kKvCells,
  kKvScore,
  kKvRetrieve,
  kChoose,
  kDistribution,
  kTopK,
  kCount
};

const char* op_name(Op op);
constexpr bool is_kv(Op op) {
  return op == Op::kRopeStore || op == Op::kAttend || op == Op::kKvMove || op == Op::kKvCells || op == Op::kKvScore ||
         op == Op::kKvRetrieve;
}

struct OpRow {
  Op op = Op::kEmbed;
  DType type = DType::kF32;       // of the weights (embed, linear) or of the KV store
  std::optional<DType> values{};  // of the KV store where its values have another type than its keys
  int rows =
      1;  // per sequence for rope_store and attend; cells of kv_move and kv_cells; layers of kv_score, kv_retrieve
  int in = 0, out = 0;  // in: width or vocabulary; out: of linear, k of top_k, or inner width of experts
  // linear
  bool bias = false, accumulate = false;
  int pad = 0;         // out_stride - out
  bool mixed = false;  // three parts of types `type`, F32, Q8_0 instead of one
  // norm
  bool in_place = false;
  // rope, attention, kv_move
  int heads = 0, kv_heads = 0, head_dim = 0;
  int dims = 0;  // rotated; 0: head_dim
  RopeStyle style = RopeStyle::kHalves;
  bool qk_norm = false;
  int history = 0;
  bool tree = false;
  int uncommitted = 0;  // so many of the first rows are written by earlier steps; outputs are the other rows'
  int window = 0;
  int soft_cap = 0;        // attend
  bool sinks = false;      // attend
  bool reads = false;      // attend: all rows see what node 0 sees, not themselves
  int loud = 1;            // attend: queries are so many times larger
  int seqs = 1;            // further ones have other histories and fewer rows
  int delta = 0;           // kv_move; where kv_cells go; also rope_table's attention factor is 1 + delta / 10
  bool same_slot = false;  // kv_move, kv_cells: within a slot, else into another store
  int kind = 0;            // kv_score, kv_retrieve: ScoreKind; experts: softmax or sigmoid, renormalised or not
  bool mean = false;       // kv_score
  // kv_retrieve; a delta: positions of the text; a tree: the oldest cells share a position
  int chunk = 0, budget = 0, sink = 0, recent = 0;
  bool ties = false;       // most chunks have the score of others
  bool each_head = false;  // each layer and key/value head chooses for itself
  // choose, distribution
  int sampling = 0;  // which of the settings in row_problems.cc
  int allowed = 0;   // which tokens are: a pattern of row_problems.cc; 0: all
  // experts
  int experts = 0, used = 0;
  bool clipped = false;
  bool large = false;  // too big for a test: benchmark only

  int rotated() const { return dims ? dims : head_dim; }
  KvTypes kv_types() const { return {type, values.value_or(type)}; }
  double kv_bytes() const {  // of a key element and a value element together
    const DTypeInfo &k = dtype_info(type), &v = dtype_info(values.value_or(type));
    return double(k.bytes) / k.block + double(v.bytes) / v.block;
  }
};

inline constexpr int kSamplings = 10;  // settings of choose and distribution
inline constexpr int kPatterns = 5;    // of allowed tokens
std::span<const OpRow> op_table();
void add_experts(std::vector<OpRow>& table, std::span<const DType> types);  // its rows of mixtures
std::string row_name(const OpRow& row);                                     // "linear/Q4_1/576x33/rows5+bias"

// An element's error is measured in units of its natural size (see Problem::scale). `mean` bounds the root mean square
// over the whole output, `peak` any single element.
struct Tolerance {
  double mean, peak;
};
Tolerance tolerance(const OpRow& row);

}  // namespace sx::parity
