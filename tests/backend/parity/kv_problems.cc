// Problems of the ops on K/V: rope_store, attend, kv_move. Stores are opaque, so what was stored or moved is observed
// through attention. Running a row again means decoding it plainly, which makes the comparison the law itself.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "problem.h"
#include "random_data.h"

namespace sx::parity {
namespace {

constexpr int kLayers = 2, kChunk = 64;
constexpr float kEps = 1e-6f;

size_t product(int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }

// Backend memory for one rope_store call of up to kChunk rows and one attended row, used again and again.
struct Desk {
  float *qkv, *table, *q_norm, *k_norm, *out;
};

// A table row's heads and what they share: norm weights, frequencies, and the calls with all their arguments.
class Heads {
 public:
  Heads(const OpRow& row, Random& random) : row_(row), frequencies_(rope_frequencies(row.rotated())) {
    if (!row.qk_norm) return;
    q_norm_ = random.normals(static_cast<size_t>(row.head_dim));
    k_norm_ = random.normals(static_cast<size_t>(row.head_dim));
  }
  int width() const { return (row_.heads + 2 * row_.kv_heads) * row_.head_dim; }  // of a row of qkv
  int q_width() const { return row_.heads * row_.head_dim; }
  const std::vector<double>& frequencies() const { return frequencies_; }

  std::unique_ptr<KvStore> make_kv(Backend& backend, int slots, int capacity) const {
    return backend.make_kv({kLayers, row_.kv_heads, row_.head_dim, slots, capacity, row_.type});
  }
  void reserve(Backend& backend, int rows, int context) const {
    backend.reserve({.rows = std::max(rows, kChunk), .width = width(), .heads = row_.heads, .kv_heads = row_.kv_heads,
                     .head_dim = row_.head_dim, .context = context});
  }
  // [positions, dims/2, 2]
  std::vector<float> table(std::span<const int> positions) const {
    std::vector<float> out;
    for (const int position : positions) {
      for (const double f : frequencies_) {
        out.push_back(static_cast<float>(std::cos(position * f)));
        out.push_back(static_cast<float>(std::sin(position * f)));
      }
    }
    return out;
  }
  Desk make_desk(Backend& backend) const {
    return {backend.allocate(product(kChunk, width()), "rows"),
            backend.allocate(product(kChunk, row_.rotated()), "table"),
            row_.qk_norm ? upload(backend, q_norm_) : nullptr, row_.qk_norm ? upload(backend, k_norm_) : nullptr,
            backend.allocate(static_cast<size_t>(q_width()), "attended row")};
  }
  RopeStoreArgs store_args(const Desk& desk, float* qkv, const float* table, KvStore& kv, int layer) const {
    RopeStoreArgs args{};
    args.qkv = qkv, args.table = table, args.q_norm = desk.q_norm, args.k_norm = desk.k_norm, args.eps = kEps;
    args.heads = row_.heads, args.kv_heads = row_.kv_heads, args.head_dim = row_.head_dim, args.dims = row_.rotated();
    args.style = row_.style, args.kv = &kv, args.layer = layer;
    return args;
  }
  AttendArgs attend_args(float* out, const float* qkv, const KvStore& kv, int layer) const {
    return {.out = out, .q = qkv, .q_stride = width(), .heads = row_.heads, .kv_heads = row_.kv_heads,
            .head_dim = row_.head_dim, .scale = 1 / std::sqrt(static_cast<float>(row_.head_dim)), .window = row_.window,
            .kv = &kv, .layer = layer, .seqs = {}};
  }
  // Stores all rows of qkv, [any, width], as cells 0, 1, ... at those positions.
  void fill(Backend& backend, const Desk& desk, const std::vector<float>& qkv, KvStore& kv, int layer, int slot) const {
    const int rows = static_cast<int>(qkv.size() / static_cast<size_t>(width()));
    for (int done = 0; done < rows; done += kChunk) {
      std::vector<int> positions;
      for (int i = done; i < std::min(rows, done + kChunk); ++i) positions.push_back(i);
      store(backend, desk, qkv.data() + product(done, width()), positions, kv, layer, {slot, done});
    }
  }
  struct Place {
    int slot, cell;
  };
  // Stores up to kChunk rows from there on; the rotated queries stay on the desk.
  void store(Backend& backend, const Desk& desk, const float* qkv, std::span<const int> positions, KvStore& kv,
             int layer, Place to) const {
    std::copy_n(qkv, positions.size() * static_cast<size_t>(width()), desk.qkv);
    const std::vector<float> turns = table(positions);
    std::copy(turns.begin(), turns.end(), desk.table);
    const SeqRows seq = {0, static_cast<int>(positions.size()), to.slot, to.cell, nullptr, 0};
    RopeStoreArgs args = store_args(desk, desk.qkv, desk.table, kv, layer);
    args.seqs = {&seq, 1};
    backend.rope_store(args);
  }
  // Stores one row at the cell, attends from there over everything before, leaves both on the desk.
  void decode(Backend& backend, const Desk& desk, const float* qkv, KvStore& kv, int layer, Place at) const {
    store(backend, desk, qkv, {&at.cell, 1}, kv, layer, at);
    const SeqRows one = {0, 1, at.slot, at.cell, nullptr, 0};
    AttendArgs args = attend_args(desk.out, desk.qkv, kv, layer);
    args.seqs = {&one, 1};
    backend.attend(args);
  }

 private:
  OpRow row_;
  std::vector<double> frequencies_;
  std::vector<float> q_norm_, k_norm_;
};

struct Sequence {
  int rows, staged, history, slot, first_row;
  std::vector<uint64_t> ancestors;  // [nodes][words], empty: a chain
  int words = 0;
  std::vector<float> past, qkv;     // [history, width], [nodes, width]

  int nodes() const { return staged + rows; }
  // Nodes that row i of the step descends from, itself included.
  std::vector<int> path(int i) const { return node_path(staged + i); }
  std::vector<int> node_path(int node) const {
    std::vector<int> out;
    for (int other = 0; other <= node; ++other) {
      const size_t word = product(node, words) + static_cast<size_t>(other / 64);
      if (ancestors.empty() || (ancestors[word] >> (other % 64) & 1)) out.push_back(other);
    }
    return out;
  }
  SeqRows rows_at(int first) const {
    const uint64_t* bits = ancestors.empty() ? nullptr : ancestors.data() + product(staged, words);
    return {first, rows, slot, history, bits, words, staged};
  }
};

// Every node hangs from one of the last few nodes, so that there are both long paths and many leaves; now and then a
// second root.
void grow_tree(Sequence& seq, Random& random) {
  seq.words = (seq.nodes() + 63) / 64;
  seq.ancestors.assign(product(seq.nodes(), seq.words), 0);
  for (int i = 0; i < seq.nodes(); ++i) {
    uint64_t* mine = seq.ancestors.data() + product(i, seq.words);
    if (i > 0 && random.below(20) != 0) {
      const int parent = std::max(0, i - 1 - random.below(4));
      std::copy_n(seq.ancestors.data() + product(parent, seq.words), seq.words, mine);
    }
    mine[i / 64] |= uint64_t{1} << (i % 64);
  }
}

class StepProblem final : public Problem {
 public:
  explicit StepProblem(const OpRow& row) : Problem(row), random_(row_name(row)), heads_(row, random_) {
    for (int s = 0; s < row.seqs; ++s) {
      Sequence seq{std::max(1, row.rows - s), std::max(0, row.staged - 3 * s), row.history + 37 * s, row.seqs - 1 - s,
                   total_, {}, 0, {}, {}};
      if (row.tree) grow_tree(seq, random_);
      seq.past = random_.normals(product(seq.history, heads_.width()));
      seq.qkv = random_.normals(product(seq.nodes(), heads_.width()));
      total_ += seq.rows;
      longest_ = std::max(longest_, seq.history + seq.nodes());
      seqs_.push_back(std::move(seq));
    }
  }
  std::unique_ptr<Instance> make(Backend& backend) const override;
  std::vector<float> scale(const Output& reference) const override {
    return run_sizes(reference.values, row_.head_dim, 1e-3f);
  }
  Cost cost() const override {
    Cost cost;
    const double bytes = static_cast<double>(dtype_info(row_.type).bytes) / dtype_info(row_.type).block;
    if (row_.op == Op::kRopeStore) {
      const int kv_columns = heads_.width() - heads_.q_width();
      return {(8.0 * heads_.q_width() + (4 + bytes) * kv_columns) * total_, 3.0 * heads_.width() * total_};
    }
    for (const Sequence& seq : seqs_) {
      cost.bytes += bytes * 2 * row_.kv_heads * row_.head_dim * (seq.history + seq.nodes());
      for (int i = 0; i < seq.rows; ++i) {
        const auto seen = static_cast<double>(seq.path(i).size()) + seq.history;
        cost.flops += 4.0 * row_.heads * row_.head_dim * (row_.window ? std::min<double>(seen, row_.window) : seen);
      }
    }
    return cost;
  }

 private:
  friend class StepInstance;
  Random random_;
  Heads heads_;
  std::vector<Sequence> seqs_;
  int total_ = 0, longest_ = 0;
};

// rope_store's output is the rotated queries followed by what attention makes of the store; attend's only the latter.
class StepInstance final : public Instance {
 public:
  StepInstance(const StepProblem& problem, Backend& backend) : p_(problem), heads_(problem.heads_), backend_(backend) {
    kv_ = heads_.make_kv(backend, p_.row_.seqs + 1, p_.longest_);
    heads_.reserve(backend, p_.total_, p_.longest_);
    desk_ = heads_.make_desk(backend);
    std::vector<float> qkv;
    std::vector<int> positions;
    for (const Sequence& seq : p_.seqs_) {
      heads_.fill(backend, desk_, seq.past, *kv_, kLayer, seq.slot);
      stage(seq);
      for (int i = 0; i < seq.rows; ++i) positions.push_back(seq.history + static_cast<int>(seq.path(i).size()) - 1);
      const auto first = static_cast<ptrdiff_t>(product(seq.staged, heads_.width()));
      qkv.insert(qkv.end(), seq.qkv.begin() + first, seq.qkv.end());
      list_.push_back(seq.rows_at(seq.first_row));
    }
    qkv_ = upload(backend, qkv);
    out_ = backend.allocate(product(p_.total_, heads_.q_width()), "test output");
    store_ = heads_.store_args(desk_, qkv_, upload(backend, heads_.table(positions)), *kv_, kLayer);
    store_.seqs = list_;
    attend_ = heads_.attend_args(out_, qkv_, *kv_, kLayer);
    attend_.seqs = list_;
    if (p_.row_.op == Op::kAttend) backend.rope_store(store_);
  }

  void run() override {
    if (p_.row_.op == Op::kAttend) backend_.attend(attend_);
    else backend_.rope_store(store_);
  }

  Output output() override {
    if (p_.row_.op == Op::kRopeStore) backend_.attend(attend_);
    Output output{p_.total_, columns(), {}};
    for (int r = 0; r < p_.total_; ++r) {
      append(output.values, qkv_ + product(r, heads_.width()), out_ + product(r, heads_.q_width()));
    }
    return output;
  }

  std::vector<float> again(std::span<const int> rows) override {
    std::vector<float> out;
    for (const int r : rows) {
      size_t s = 0;
      while (r >= p_.seqs_[s].first_row + p_.seqs_[s].rows) ++s;
      decode(p_.seqs_[s], r - p_.seqs_[s].first_row, out);
    }
    return out;
  }

 private:
  static constexpr int kLayer = 1;

  int columns() const { return (p_.row_.op == Op::kRopeStore ? 2 : 1) * heads_.q_width(); }
  void append(std::vector<float>& out, const float* q, const float* attended) const {
    if (p_.row_.op == Op::kRopeStore) out.insert(out.end(), q, q + heads_.q_width());
    out.insert(out.end(), attended, attended + heads_.q_width());
  }

  // What earlier steps have written of the strip.
  void stage(const Sequence& seq) {
    for (int node = 0; node < seq.staged; ++node) {
      const int position = seq.history + static_cast<int>(seq.node_path(node).size()) - 1;
      heads_.store(backend_, desk_, seq.qkv.data() + product(node, heads_.width()), {&position, 1}, *kv_, kLayer,
                   {seq.slot, seq.history + node});
    }
  }

  // Row i of the sequence in the spare slot: history and path as committed cells, then a step of this row alone.
  void decode(const Sequence& seq, int i, std::vector<float>& out) {
    const int spare = p_.row_.seqs;
    std::vector<KvMove> moves;
    if (copied_ != &seq) {
      for (int c = 0; c < seq.history; ++c) moves.push_back({c, c, 0});
      copied_ = &seq;
    }
    const std::vector<int> path = seq.path(i);
    const int length = seq.history + static_cast<int>(path.size()) - 1;
    for (size_t k = 0; k + 1 < path.size(); ++k) {
      moves.push_back({seq.history + path[k], seq.history + static_cast<int>(k), 0});
    }
    if (!moves.empty()) {
      backend_.kv_move({.from = kv_.get(), .to = kv_.get(), .from_slot = seq.slot, .to_slot = spare, .moves = moves,
                        .frequencies = nullptr, .dims = 0, .style = p_.row_.style});
    }
    const float* qkv = seq.qkv.data() + product(seq.staged + i, heads_.width());
    heads_.decode(backend_, desk_, qkv, *kv_, kLayer, {spare, length});
    append(out, desk_.qkv, desk_.out);
  }

  const StepProblem& p_;
  const Heads& heads_;
  Backend& backend_;
  std::unique_ptr<KvStore> kv_;  // slots: one per sequence, and a spare one
  std::vector<SeqRows> list_;
  float *qkv_ = nullptr, *out_ = nullptr;
  Desk desk_;
  RopeStoreArgs store_;
  AttendArgs attend_;
  const Sequence* copied_ = nullptr;  // whose history the spare slot holds
};

std::unique_ptr<Instance> StepProblem::make(Backend& backend) const {
  return std::make_unique<StepInstance>(*this, backend);
}

// Cells of slot 0 go to another store, or shift down within their slot as when a path is committed. The output has a
// row per layer: the attention of one probe over the moved cells.
class MoveProblem final : public Problem {
 public:
  explicit MoveProblem(const OpRow& row) : Problem(row), random_(row_name(row)), heads_(row, random_) {
    length_ = row.same_slot ? kFirst + row.rows : row.rows;
    for (int i = 0; i < row.rows; ++i) {
      const int delta = i % 5 == 4 ? 0 : row.delta;
      if (row.same_slot) moves_.push_back({kFirst + i + 1 + i / 3, kFirst + i, delta});
      else moves_.push_back({random_.below(row.history), i, delta});
    }
    for (int layer = 0; layer < kLayers; ++layer) {
      cells_.push_back(random_.normals(product(row.history, heads_.width())));
      probe_.push_back(random_.normals(static_cast<size_t>(heads_.width())));
    }
  }
  std::unique_ptr<Instance> make(Backend& backend) const override;
  std::vector<float> scale(const Output& reference) const override {
    return run_sizes(reference.values, row_.head_dim, 1e-3f);
  }
  Cost cost() const override {
    const double bytes = static_cast<double>(dtype_info(row_.type).bytes) / dtype_info(row_.type).block;
    return {4 * bytes * kLayers * row_.kv_heads * row_.head_dim * row_.rows, 0};
  }

 private:
  friend class MoveInstance;
  static constexpr int kFirst = 60;  // the first cell that is overwritten within a slot
  Random random_;
  Heads heads_;
  std::vector<KvMove> moves_;
  int length_ = 0;                           // cells before the probe
  std::vector<std::vector<float>> cells_;    // per layer [history, width]
  std::vector<std::vector<float>> probe_;    // per layer [width]
};

class MoveInstance final : public Instance {
 public:
  MoveInstance(const MoveProblem& problem, Backend& backend) : p_(problem), heads_(problem.heads_), backend_(backend) {
    const int capacity = std::max(p_.row_.history, p_.length_ + 1);
    from_ = heads_.make_kv(backend, 2, capacity);
    if (!p_.row_.same_slot) other_ = heads_.make_kv(backend, 2, capacity);
    heads_.reserve(backend, 1, capacity);
    desk_ = heads_.make_desk(backend);
    for (int layer = 0; layer < kLayers; ++layer) {
      heads_.fill(backend, desk_, p_.cells_[static_cast<size_t>(layer)], *from_, layer, 0);
    }
  }
  void run() override { move(p_.moves_, target_slot()); }
  Output output() override {
    Output out{kLayers, heads_.q_width(), {}};
    for (int layer = 0; layer < kLayers; ++layer) probe(layer, target_slot(), out.values);
    return out;
  }
  // Slot 1 - target gets the same cells: stored there directly when nothing was rotated, else by one call per move.
  std::vector<float> again(std::span<const int> layers) override {
    const int slot = 1 - target_slot();
    std::vector<int> origin(static_cast<size_t>(from_->geometry().capacity), -1);  // which source cell lies where
    for (int c = 0; p_.row_.same_slot && c < p_.row_.history; ++c) origin[static_cast<size_t>(c)] = c;
    if (p_.row_.delta != 0) {
      refill(slot, origin);
      for (const KvMove& m : p_.moves_) move({&m, 1}, slot);
    } else {
      for (const KvMove& m : p_.moves_) {
        origin[static_cast<size_t>(m.dst)] = p_.row_.same_slot ? origin[static_cast<size_t>(m.src)] : m.src;
      }
      refill(slot, origin);
    }
    std::vector<float> out;
    for (const int layer : layers) probe(layer, slot, out);
    return out;
  }

 private:
  KvStore& target() { return other_ ? *other_ : *from_; }
  int target_slot() const { return other_ ? 1 : 0; }

  void move(std::span<const KvMove> moves, int slot) {
    backend_.kv_move({.from = from_.get(), .to = &target(), .from_slot = other_ ? 0 : slot, .to_slot = slot,
                      .moves = moves, .frequencies = heads_.frequencies().data(), .dims = p_.row_.rotated(),
                      .style = p_.row_.style});
  }
  void refill(int slot, const std::vector<int>& origin) {
    for (int layer = 0; layer < kLayers; ++layer) {
      for (size_t cell = 0; cell < origin.size(); ++cell) {
        if (origin[cell] < 0) continue;
        const float* row = p_.cells_[static_cast<size_t>(layer)].data() + product(origin[cell], heads_.width());
        const int positions[] = {origin[cell]};
        heads_.store(backend_, desk_, row, positions, target(), layer, {slot, static_cast<int>(cell)});
      }
    }
  }
  void probe(int layer, int slot, std::vector<float>& out) {
    heads_.decode(backend_, desk_, p_.probe_[static_cast<size_t>(layer)].data(), target(), layer, {slot, p_.length_});
    out.insert(out.end(), desk_.out, desk_.out + heads_.q_width());
  }

  const MoveProblem& p_;
  const Heads& heads_;
  Backend& backend_;
  std::unique_ptr<KvStore> from_, other_;
  Desk desk_;
};

std::unique_ptr<Instance> MoveProblem::make(Backend& backend) const {
  return std::make_unique<MoveInstance>(*this, backend);
}

}  // namespace

std::unique_ptr<Problem> make_kv_problem(const OpRow& row) {
  if (row.op == Op::kKvMove) return std::make_unique<MoveProblem>(row);
  return std::make_unique<StepProblem>(row);
}

}  // namespace sx::parity
