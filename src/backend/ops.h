// The op interface: what a forward pass is made of. Arguments are plain structs of raw pointers into backend memory; an
// op cannot fail and cannot allocate. Shapes are written beside every pointer, outermost first; activations are f32 and
// lie in memory from Backend::allocate, which the host may not be able to reach; integers (tokens, positions, SeqRows,
// moves) and what is marked so lie in host memory.
//
// Batch invariance (docs/architecture.md): each output row is a function of its own inputs only; its bits do not depend
// on how many rows share the call, on their order, or on the number of threads.
#pragma once
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "base/token.h"
#include "kv/chunk_choice.h"
#include "kv/move.h"
#include "tensor/activation.h"
#include "tensor/rope_style.h"
#include "tensor/routing.h"
#include "tensor/tensor.h"

namespace sx {

inline constexpr int kBlock = 64;  // positions folded at once by attention; absolute multiples
inline constexpr int kSpan = 512;  // positions whose blocks are folded in one chain; spans merge in ascending order

class Matrix;   // a weight matrix in the backend's own layout
class KvStore;  // K/V cells of many sequences in the backend's own layout

// The rows of one sequence in a step: rows [first_row, first_row + rows) of the activations. Behind the committed cells
// [0, history) lies the tail: node j of the current tree is written to cell history + j. Row i of the sequence is node
// uncommitted + i; the nodes below `uncommitted` were written by earlier steps and are only read. A row sees the
// history and its ancestors in the tail. Its place in the order of attention ("index") is history + depth, depth =
// number of proper ancestors; along a path node numbers ascend. Read-only queries (a drafter that cross-attends to the
// target's KV cache) use node 0's mask and write no K/V.
struct SeqRows {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t slot = 0;                     // the sequence's place in the KvStore
  int32_t history = 0;                  // committed cells
  const uint64_t* ancestors = nullptr;  // [rows][words] bits over the nodes of the tail, self included; null: a chain,
  int32_t words = 0;                    // i.e. node j descends from nodes 0..j-1
  int32_t uncommitted = 0;              // nodes of the tail that earlier steps have written
};

// The integers of a step, in host memory. The ops of the step are given these very arrays.
struct StepInputs {
  std::span<const Token> tokens;       // [rows]
  std::span<const int32_t> positions;  // [rows], for RoPE
  std::span<const SeqRows> seqs;       // cover the rows
  std::span<const int32_t> outputs;    // rows whose logits are wanted, in that order
  bool prompt = false;                 // rows of a prompt: each sequence's are a chain
};

// What else the ops of a step depend on. Steps with equal keys and equal numbers of rows, outputs and sequences run the
// same ops on the same memory, so that a backend may record them once.
struct StepKey {
  const void* owner = nullptr;  // the model
  const void* kv = nullptr;     // the store whose cells it writes and reads, a KvStore
  const void* input = nullptr;  // further memory it reads
  uint64_t plan = 0;            // layers that are left out, windows
};

// to[r] (+)= from[which ? which[r] : r] * scale, columns [0, width).
struct CopyRowsArgs {
  float* to;
  const float* from;
  int rows, width;
  int to_stride, from_stride;
  const int32_t* which = nullptr;  // [rows], host memory
  bool add = false;
  float scale = 1;
  bool launched = false;          // rows of padding are among `rows`, see Backend::launched_rows()
  const int32_t* into = nullptr;  // [rows], host memory, each once: the rows of `to`. Not within a step; with `which`
};

struct RankCut;
// Ranks by columns: rows of cut.width() columns of which this rank has its own; all ranks get all of them.
struct GatherArgs {
  float* rows;                  // [count, stride]
  const float* mine = nullptr;  // [count, own columns] without gaps; null: they lie in their place in `rows`
  int count, stride;
  const RankCut& cut;
  bool to_first = false;  // rank 0 alone gets what the others have
  bool launched = false;  // as in CopyRowsArgs
};

struct EmbedArgs {
  float* out;           // [rows, width]
  const Token* tokens;  // [rows]
  int rows;
  Tensor table;  // [vocab, width], any weight type; from place_table()
};

// RMS norm: out = x / sqrt(mean(x^2) + eps) * weight. Centred (LayerNorm): x - mean(x) takes the place of x, and the
// bias is added.
struct NormArgs {
  float* out;           // [rows, width]; may alias x
  const float* x;       // [rows, width]
  const float* weight;  // [width]
  int rows, width;
  float eps;
  const Matrix* only_for = nullptr;  // if given: the next op, linear with this matrix, is the only reader of out
  bool centred = false;
  const float* bias = nullptr;  // [width] or null; centred norms only
  int stride = 0;               // between rows of x and of out; 0: width
};

struct LinearArgs {  // out (+)= x W^T (+ bias)
  float* out;        // [rows, out_stride], columns [0, W.out)
  const float* x;    // [rows, W.in], contiguous
  const Matrix* weight;
  const float* bias = nullptr;  // [W.out] or null
  int rows;
  int out_stride;
  bool accumulate = false;  // out += instead of out =
  bool outputs = false;     // the rows are outputs of the step, not its rows
};

struct RopeTableArgs {       // per step, before the layers
  float* table;              // [rows, dims/2, 2]: cos, sin, already times the attention factor
  const int32_t* positions;  // [rows]
  int rows;
  const double* frequencies;  // [dims/2], radians per position
  int dims;
  float factor;  // yarn's attention factor, else 1
};

// The heads of an attention layer.
struct AttentionShape {
  int heads = 0, kv_heads = 0, head_dim = 0;

  int q_width() const { return heads * head_dim; }
  int qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  float scale() const { return 1.0f / std::sqrt(float(head_dim)); }  // of q k before the softmax
};

// Norms q and k heads (if weights are given), rotates them, writes K and V to the cells.
struct RopeStoreArgs {
  float* qkv;                     // [rows, (heads + 2 kv_heads) * head_dim]; q is rotated in place
  const float* table;             // [rows, dims/2, 2]
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;
  float eps = 0;
  AttentionShape shape;
  int dims;
  RopeStyle style;
  KvStore* kv;
  int layer;
  std::span<const SeqRows> seqs;
};

struct AttendArgs {
  float* out;      // [rows, heads * head_dim]
  const float* q;  // [rows, q_stride], columns [0, heads * head_dim), rotated
  int q_stride;
  AttentionShape shape;
  float scale;                   // usually shape.scale()
  int window = 0;                // row at index i sees indices > i - window; 0: all
  float soft_cap = 0;            // a score x becomes soft_cap * tanh(x / soft_cap) before the softmax; 0: it stays
  const float* sinks = nullptr;  // [heads] or null: a logit per head that joins the sum of the softmax, without a value
  const KvStore* kv;
  int layer;
  std::span<const SeqRows> seqs;
};

struct GluArgs {         // out = activation(gate) * up; without a gate: activation(up)
  float* out;            // [rows, width]
  const float* gate_up;  // [rows, 2 * width]; without a gate: [rows, width]
  int rows, width;
  const Matrix* only_for = nullptr;  // as in NormArgs
  Activation activation = Activation::kSilu;
  bool gated = true;
};

struct SoftCapArgs {  // x = cap * tanh(x / cap)
  float* x;           // [rows, width]
  int rows, width;
  float cap;
};

// The feed-forward of a mixture: each row goes through the `used` experts that its router chooses (ties to the lower
// index), and the results are added, weighted, in the order of choice, best first:
//   out (+)= (w0 y0 + w1 y1) + ...,  y = down(activation(gate_up(x))).
// An expert's rows are those that chose it; a row's bits do not depend on which others did.
//
// Where columns are divided among ranks (`part`), gate_up has this rank's columns of the gates and ups, down those of
// the result: out has the width of x, and the rank's columns of it are written.
struct ExpertsPart {
  int ffn = 0;          // of all ranks
  int first_inner = 0;  // the rank's columns of activation(gate_up(x)) begin there
  int first_out = 0;    // and those of the result there
  virtual ~ExpertsPart() = default;
  // Completes rows of activation(gate_up(x)), [rows, ffn], of which the rank's columns are there, in their place or in
  // `mine` without gaps. on_device: in memory of the backend, rows of padding included; else in host memory.
  virtual void gather(const float* mine, float* inner, int rows, bool on_device) const = 0;
};

struct ExpertsArgs {
  float* out;                           // [rows, width]
  const float* x;                       // [rows, width]
  const float* logits;                  // [rows, experts], the router's
  const Matrix* gate_up;                // from make_experts(): width -> 2 ffn, gates first
  const Matrix* down;                   // ffn -> width
  const float* gate_up_bias = nullptr;  // [experts, 2 ffn] or null
  const float* down_bias = nullptr;     // [experts, width] or null
  int rows;
  int used;
  Routing routing = Routing::kSoftmax;
  bool renormalise = true;
  const float* choice_bias = nullptr;  // [experts] or null; kSigmoid only
  float scale = 1;                     // of the weights
  // Activation: silu(gate) * up. With a limit (gpt-oss): gate at most `limit`, up within -limit..limit, then
  // gate * sigmoid(alpha * gate) * (up + 1).
  float limit = 0, alpha = 1.702f;
  bool accumulate = false;            // out += instead of out =
  const ExpertsPart* part = nullptr;  // null: all columns
};

// How to turn a row of logits into a token. Order: logit bias and penalties, top-k, top-p, min-p, temperature, then the
// largest of logit / temperature + Gumbel noise keyed by (seed, position, token): an exact sample, the same wherever
// and whenever the row is computed. Temperature 0: the largest logit. Ties go to the smaller id; without any logit
// above -infinity it is the smallest id.
struct Sampling {
  float temperature = 0;
  int top_k = 0;  // 0: all
  float top_p = 1, min_p = 0;
  float repeat_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  uint64_t seed = 0;
};
struct TokenBias {
  Token token;
  float bias;
};
struct TokenCount {
  Token token;
  int32_t count;
};  // a token of the penalty window and how often it occurs there
struct ChooseRow {
  const float* logits;  // [vocab]
  uint64_t position;    // of the token to be chosen
  const Sampling* sampling;
  std::span<const TokenBias> bias;
  std::span<const TokenCount> counts;  // of this row's own path
  const uint32_t* allowed =
      nullptr;  // [(vocab + 31) / 32] bits, host memory: other tokens are as if they were not there; null: all
  uint8_t* broken =
      nullptr;  // host memory: set to 1 if the logit of an allowed token is NaN or +infinity, before bias and
                // penalties; else left alone. Null: not wanted

  bool allows(Token t) const { return !allowed || (allowed[t / 32] >> (t % 32) & 1); }
};
struct ChooseArgs {
  Token* out;  // [rows], host memory; kNoToken where no token is allowed
  std::span<const ChooseRow> rows;
  int vocab;
};

// The distribution that choose() draws from, after bias, penalties, filters and temperature; temperature 0: all on one
// token.
struct ProbabilitiesArgs {
  double* out;  // [vocab], sums to 1, or all 0 where no token is allowed; host memory
  ChooseRow row;
  int vocab;
};

struct Candidate {
  Token token;
  float logp;       // log-probability
  float logit = 0;  // as top_k found it
};

// The k likeliest tokens of each row by the plain softmax of its logits, best first, ties to the smaller id.
struct TopKArgs {
  Candidate* out;       // [rows, k], host memory
  const float* logits;  // [rows, stride], columns [0, vocab)
  int rows, vocab, k;   // k <= vocab
  int stride = 0;       // 0: vocab
};

struct KvMoveArgs {
  const KvStore* from;
  KvStore* to;  // may be the same store
  int from_slot, to_slot;
  std::span<const KvMove> moves;        // done in order
  const double* frequencies = nullptr;  // [dims/2]; needed when a delta is not 0
  int dims = 0;
  RopeStyle style = RopeStyle::kHalves;
  int layer = -1, head = -1;  // only this layer, only this key/value head; -1: all
};

// Cells [first, first + count) of a slot, all layers, as bytes in host memory: [count][kv_cell_bytes], a cell being
// [layer][KV head] of equally many bytes. They mean the same in every store of the same backend, type, layers, heads
// and head size.
struct KvCellsArgs {
  int slot, first, count;
};

// Cells [first, end) of some layers of a slot will not be read before they are written again: a backend may give their
// memory back. Until then they hold finite numbers, whatever these are.
struct KvReleaseArgs {
  int slot, first_layer, layers, first, end;
};

// What one query sees in each chunk of a history.
enum class ScoreKind {
  kMass,   // sum of its attention over the chunk (softmax over all cells of all chunks)
  kPeak,   // largest attention of a cell
  kLogit,  // mean of q k * scale: the query times the mean key
  kBound,  // the largest q k * scale could be, given smallest and largest value of each dimension in the chunk
};
struct KvScoreArgs {
  float* out;      // [heads, chunks], host memory
  const float* q;  // [heads * head_dim], rotated
  int heads, kv_heads, head_dim;
  float scale;
  const KvStore* kv;
  int layer, slot;
  std::span<const int32_t> borders;  // [chunks + 1], rising: chunk c is the cells [borders[c], borders[c + 1])
  ScoreKind kind = ScoreKind::kMass;
  std::span<const int>
      layers{};       // these instead of `layer`: q is [layers, heads * head_dim], out [layers, heads, chunks]
  bool mean = false;  // out is [chunks], the mean over layers and heads
};

// Retrieval: scores as kv_score() gives them with `mean`, the choice of choose_chunks(), and the chosen cells moved to
// places 0, 1, ... of another store, where chunks are of one length and the number of cells does not depend on the
// scores. `each_head`: each layer and key/value head of the stores chooses for itself, by the mean over its own query
// heads; `score.layers` are all layers in order, and the choice is [layers, key/value heads, cells].
struct KvRetrieveArgs {
  KvScoreArgs score;      // all layers by `layers`; the first border is 0; `out` and `mean` are not read
  bool per_cell = false;  // a chunk's score is divided by its length
  bool each_head = false;
  int budget, sink, recent;
  EvenPlan plan;  // plan_even_chunks() of these
  const KvStore* from;
  KvStore* to;
  int slot;  // of both
  // Positions: place - shift, at least 0 and at most `top`; or those of the text, from which the cells come.
  bool compact = true;
  int shift = 0, top = 0;
  // What needs no move: places below `held` hold what the last kv_retrieve() with this choice put there, by
  // `shift_before`, and behind that the cells from `since` on. Not read with each_head: all cells are moved.
  int held = 0, since = 0, shift_before = 0;
  const double* frequencies = nullptr;  // [dims/2]
  int dims = 0;
  RopeStyle style = RopeStyle::kHalves;
  // Host memory for backends that choose there.
  std::span<float> scores{};               // [layers, heads, chunks]; each_head: [heads, chunks]
  std::span<float> reduced{};              // [chunks]
  std::vector<uint64_t>* order = nullptr;  // choice_scratch()
  std::vector<KvMove>* moves = nullptr;
};

}  // namespace sx
