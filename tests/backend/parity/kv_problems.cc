// Problems of the ops that write and read K/V: rope_store, attend. Stores are opaque, so what was stored is observed
// through attention. Running a row again means decoding it plainly, which makes the comparison the distribution itself.
#include <algorithm>

#include "heads.h"

namespace sx::parity {
namespace {

struct Sequence {
  int rows, uncommitted, history, slot, first_row;
  std::vector<uint64_t> ancestors;  // [nodes][words], empty: a chain
  int words = 0;
  std::vector<float> past, qkv;  // [history, width], [nodes, width]

  int nodes() const { return uncommitted + rows; }
  // Nodes that row i of the step descends from, itself included.
  std::vector<int> path(int i) const { return node_path(uncommitted + i); }
  std::vector<int> node_path(int node) const {
    std::vector<int> out;
    for (int other = 0; other <= node; ++other) {
      const size_t word = product(node, words) + static_cast<size_t>(other / 64);
      if (ancestors.empty() || (ancestors[word] >> (other % 64) & 1)) out.push_back(other);
    }
    return out;
  }
  SeqRows rows_at(int first) const {
    const uint64_t* bits = ancestors.empty() ? nullptr : ancestors.data() + product(uncommitted, words);
    return {first, rows, slot, history, bits, words, uncommitted};
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

// All rows have the bits of node 0.
void see_the_first(Sequence& seq) {
  seq.words = (seq.nodes() + 63) / 64;
  seq.ancestors.assign(product(seq.nodes(), seq.words), 0);
  for (int i = 0; i < seq.nodes(); ++i) seq.ancestors[product(i, seq.words)] = 1;
}

class StepProblem final : public Problem {
 public:
  explicit StepProblem(const OpRow& row) : Problem(row), random_(row_name(row)), heads_(row, random_) {
    for (int s = 0; s < row.seqs; ++s) {
      Sequence seq{std::max(1, row.rows - s),
                   std::max(0, row.uncommitted - 3 * s),
                   row.history + 37 * s,
                   row.seqs - 1 - s,
                   total_,
                   {},
                   0,
                   {},
                   {}};
      if (row.tree) grow_tree(seq, random_);
      if (row.reads) see_the_first(seq);
      seq.past = random_.normals(product(seq.history, heads_.width()));
      seq.qkv = random_.normals(product(seq.nodes(), heads_.width()));
      for (size_t i = 0; row.loud > 1 && i < seq.qkv.size(); ++i) {
        if (i % static_cast<size_t>(heads_.width()) < static_cast<size_t>(heads_.q_width()))
          seq.qkv[i] *= static_cast<float>(row.loud);
      }
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
    const double bytes = row_.kv_bytes();
    if (row_.op == Op::kRopeStore) {
      const int kv_columns = heads_.width() - heads_.q_width();
      return {(8.0 * heads_.q_width() + (4 + bytes / 2) * kv_columns) * total_, 3.0 * heads_.width() * total_};
    }
    for (const Sequence& seq : seqs_) {
      cost.bytes += bytes * row_.kv_heads * row_.head_dim * (seq.history + seq.nodes());
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
      poison_behind_window(seq);
      stage(seq);
      for (int i = 0; i < seq.rows; ++i) positions.push_back(seq.history + static_cast<int>(seq.path(i).size()) - 1);
      const auto first = static_cast<ptrdiff_t>(product(seq.uncommitted, heads_.width()));
      qkv.insert(qkv.end(), seq.qkv.begin() + first, seq.qkv.end());
      list_.push_back(seq.rows_at(seq.first_row));
    }
    qkv_ = upload(backend, qkv);
    out_ = backend.allocate(product(p_.total_, heads_.q_width()), "test output");
    store_ = heads_.store_args(desk_, qkv_, upload(backend, heads_.table(positions)), *kv_, kLayer);
    store_.seqs = list_;
    attend_ = heads_.attend_args(desk_, out_, qkv_, *kv_, kLayer);
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
      if (p_.row_.reads) look(p_.seqs_[s], r, out);
      else decode(p_.seqs_[s], r - p_.seqs_[s].first_row, out);
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

  // Cells that no row sees become NaN, whole tiles of 128 (the largest that a kernel reads at once) of those which a
  // kernel may leave out: all but the last two blocks before the tail.
  void poison_behind_window(const Sequence& seq) {
    const int hidden = std::min(seq.history + 1 - p_.row_.window, (seq.history / kBlock - 1) * kBlock) / 128 * 128;
    if (p_.row_.window == 0 || hidden <= 0) return;
    const std::vector<std::byte> nan(static_cast<size_t>(hidden) * backend_.kv_cell_bytes(*kv_), std::byte(0xff));
    backend_.kv_write(*kv_, {.slot = seq.slot, .first = 0, .count = hidden}, nan.data());
  }

  // What earlier steps have written of the tail.
  void stage(const Sequence& seq) {
    for (int node = 0; node < seq.uncommitted; ++node) {
      const int position = seq.history + static_cast<int>(seq.node_path(node).size()) - 1;
      heads_.store(backend_, desk_, seq.qkv.data() + product(node, heads_.width()), {&position, 1}, *kv_, kLayer,
                   {seq.slot, seq.history + node});
    }
  }

  // A row that only reads, alone: as if it were node 0.
  void look(const Sequence& seq, int row, std::vector<float>& out) {
    const SeqRows one{0, 1, seq.slot, seq.history, nullptr, 0};
    const float* q = qkv_ + product(row, heads_.width());
    AttendArgs args = heads_.attend_args(desk_, desk_.out, q, *kv_, kLayer);
    args.seqs = {&one, 1};
    backend_.attend(args);
    append(out, q, desk_.out);
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
      backend_.kv_move({.from = kv_.get(),
                        .to = kv_.get(),
                        .from_slot = seq.slot,
                        .to_slot = spare,
                        .moves = moves,
                        .frequencies = nullptr,
                        .dims = 0,
                        .style = p_.row_.style});
    }
    const float* qkv = seq.qkv.data() + product(seq.uncommitted + i, heads_.width());
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

}  // namespace

std::unique_ptr<Problem> make_step_problem(const OpRow& row) { return std::make_unique<StepProblem>(row); }

}  // namespace sx::parity
