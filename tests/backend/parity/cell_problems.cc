// Problems of the ops on cells that are there: kv_move, cells as bytes (kv_read and kv_write), kv_score. What was moved
// is observed through attention.
#include <algorithm>
#include <cmath>

#include "heads.h"

namespace sx::parity {
namespace {

// Cells of slot 0 go to another store, or shift down within their slot as when a path is committed. As bytes they go to
// another place among the same cells, in another slot of a store of another size or in their own slot. The output has a
// row per layer: the attention of one probe over the cells.
class MoveProblem final : public Problem {
 public:
  explicit MoveProblem(const OpRow& row) : Problem(row), random_(row_name(row)), heads_(row, random_) {
    length_ = bytes() ? row.history : row.same_slot ? kFirst + row.rows : row.rows;
    for (int i = 0; i < row.rows; ++i) {
      if (bytes()) {
        moves_.push_back({kFrom + i, row.delta + i, 0});
        continue;
      }
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
  Cost cost() const override { return {2 * row_.kv_bytes() * kLayers * row_.kv_heads * row_.head_dim * row_.rows, 0}; }

 private:
  friend class MoveInstance;
  static constexpr int kFirst = 60;  // the first cell that is overwritten within a slot
  static constexpr int kFrom = 13;   // the first cell that becomes bytes
  bool bytes() const { return row_.op == Op::kKvCells; }
  bool among_others() const { return row_.same_slot || bytes(); }  // what is not overwritten is there too
  bool turns() const { return row_.delta != 0 && !bytes(); }
  Random random_;
  Heads heads_;
  std::vector<KvMove> moves_;
  int length_ = 0;                         // cells before the probe
  std::vector<std::vector<float>> cells_;  // per layer [history, width]
  std::vector<std::vector<float>> probe_;  // per layer [width]
};

class MoveInstance final : public Instance {
 public:
  MoveInstance(const MoveProblem& problem, Backend& backend) : p_(problem), heads_(problem.heads_), backend_(backend) {
    const int capacity = std::max(p_.row_.history, p_.length_ + 1);
    from_ = heads_.make_kv(backend, 2, capacity);
    if (!p_.row_.same_slot) other_ = heads_.make_kv(backend, 2, capacity + (p_.bytes() ? 1100 : 0));
    heads_.reserve(backend, 1, capacity);
    desk_ = heads_.make_desk(backend);
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::vector<float>& cells = p_.cells_[static_cast<size_t>(layer)];
      heads_.fill(backend, desk_, cells, *from_, layer, 0);
      if (p_.bytes() && other_) heads_.fill(backend, desk_, cells, *other_, layer, 1);
    }
  }
  void run() override {
    if (!p_.bytes()) return move(p_.moves_, target_slot());
    std::vector<std::byte> bytes(static_cast<size_t>(p_.row_.rows) * backend_.kv_cell_bytes(*from_));
    backend_.kv_read(*from_, {0, p_.kFrom, p_.row_.rows}, bytes.data());
    backend_.kv_write(target(), {target_slot(), p_.row_.delta, p_.row_.rows}, bytes.data());
  }
  Output output() override {
    Output out{kLayers, heads_.q_width(), {}};
    for (int layer = 0; layer < kLayers; ++layer) probe(layer, target_slot(), out.values);
    return out;
  }
  // Slot 1 - target gets the same cells: stored there directly when nothing was rotated, else by one call per move.
  // (As bytes, all cells were read before one was written.)
  std::vector<float> again(std::span<const int> layers) override {
    const int slot = 1 - target_slot();
    std::vector<int> origin(static_cast<size_t>(from_->geometry().capacity), -1);  // which source cell lies where
    for (int c = 0; p_.among_others() && c < p_.row_.history; ++c) origin[static_cast<size_t>(c)] = c;
    if (p_.turns()) {
      refill(slot, origin);
      for (const KvMove& m : p_.moves_) move({&m, 1}, slot);
    } else {
      for (const KvMove& m : p_.moves_) {
        origin[static_cast<size_t>(m.dst)] =
            p_.row_.same_slot && !p_.bytes() ? origin[static_cast<size_t>(m.src)] : m.src;
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
    backend_.kv_move({.from = from_.get(),
                      .to = &target(),
                      .from_slot = other_ ? 0 : slot,
                      .to_slot = slot,
                      .moves = moves,
                      .frequencies = heads_.frequencies().data(),
                      .dims = p_.row_.rotated(),
                      .style = p_.row_.style});
  }
  void refill(int slot, const std::vector<int>& origin) {
    for (int layer = 0; layer < kLayers; ++layer) {
      for (size_t cell = 0, n; cell < origin.size(); cell += n) {
        n = 1;
        if (origin[cell] < 0) continue;
        const auto follows = [&](size_t i) {
          return cell + i < origin.size() && origin[cell + i] == origin[cell] + int(i);
        };
        while (n < kChunk && follows(n)) ++n;
        const float* row = p_.cells_[static_cast<size_t>(layer)].data() + product(origin[cell], heads_.width());
        heads_.store(backend_, desk_, row, {origin.data() + cell, n}, target(), layer, {slot, static_cast<int>(cell)});
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

// One query per layer over ragged chunks of a history. Running it again is another call: kv_score has no rows.
class ScoreProblem final : public Problem {
 public:
  explicit ScoreProblem(const OpRow& row) : Problem(row), random_(row_name(row)), heads_(row, random_) {
    for (int layer = 0; layer < kLayers; ++layer)
      cells_.push_back(random_.normals(product(row.history, heads_.width())));
    q_ = random_.normals(product(kLayers, heads_.q_width()));
    borders_ = {row.history / 9};
    const int most = std::max(4, row.history / 20);
    while (borders_.back() < row.history - 3) {
      const int cells = 1 + random_.below(random_.below(4) == 0 ? 4 * most : most);
      borders_.push_back(std::min(row.history - 3, borders_.back() + cells));
    }
    order_ = row.rows == 1 ? std::vector<int>{} : std::vector<int>{1, 0};
  }
  std::unique_ptr<Instance> make(Backend& backend) const override;
  // Shares are measured by themselves, logits (of order 1) as they are.
  std::vector<float> scale(const Output& reference) const override {
    const auto kind = static_cast<ScoreKind>(row_.kind);
    const bool share = kind == ScoreKind::kMass || kind == ScoreKind::kPeak;
    std::vector<float> sizes = reference.values;
    for (float& size : sizes) size = std::max(share ? 1e-9f : 1.0f, std::fabs(size));
    return sizes;
  }
  Cost cost() const override {
    const double bytes = static_cast<double>(dtype_info(row_.type).bytes) / dtype_info(row_.type).block;
    return {bytes * row_.kv_heads * row_.head_dim * row_.history * row_.rows,
            2.0 * heads_.q_width() * row_.history * row_.rows};
  }

 private:
  friend class ScoreInstance;
  Random random_;
  Heads heads_;
  std::vector<std::vector<float>> cells_;  // per layer [history, width]
  std::vector<float> q_;                   // [layers, q_width]
  std::vector<int32_t> borders_;
  std::vector<int> order_;  // the layers of the call; empty: layer 1
};

class ScoreInstance final : public Instance {
 public:
  ScoreInstance(const ScoreProblem& problem, Backend& backend) : p_(problem), backend_(backend) {
    const OpRow& row = p_.row_;
    kv_ = p_.heads_.make_kv(backend, 2, row.history);
    p_.heads_.reserve(backend, 1, row.history);
    const Desk desk = p_.heads_.make_desk(backend);
    for (int layer = 0; layer < kLayers; ++layer)
      p_.heads_.fill(backend, desk, p_.cells_[static_cast<size_t>(layer)], *kv_, layer, 1);
    q_ = upload(backend, p_.q_);
    const int chunks = static_cast<int>(p_.borders_.size()) - 1;
    out_ = {row.mean ? 1 : row.heads * std::max(1, static_cast<int>(p_.order_.size())), chunks, {}};
    out_.values.resize(product(out_.rows, chunks));
  }
  void run() override {
    const OpRow& row = p_.row_;
    KvScoreArgs args{out_.values.data(),
                     q_,
                     row.heads,
                     row.kv_heads,
                     row.head_dim,
                     1 / std::sqrt(static_cast<float>(row.head_dim)),
                     kv_.get(),
                     1,
                     1,
                     p_.borders_,
                     static_cast<ScoreKind>(row.kind)};
    args.layers = p_.order_, args.mean = row.mean;
    backend_.kv_score(args);
  }
  Output output() override { return out_; }
  std::vector<float> again(std::span<const int> rows) override {
    std::fill(out_.values.begin(), out_.values.end(), NAN);
    run();
    std::vector<float> out;
    for (const int r : rows) out.insert(out.end(), out_.row(r), out_.row(r) + out_.columns);
    return out;
  }

 private:
  const ScoreProblem& p_;
  Backend& backend_;
  std::unique_ptr<KvStore> kv_;
  const float* q_ = nullptr;
  Output out_;
};

std::unique_ptr<Instance> ScoreProblem::make(Backend& backend) const {
  return std::make_unique<ScoreInstance>(*this, backend);
}

}  // namespace

std::unique_ptr<Problem> make_cell_problem(const OpRow& row) {
  if (row.op == Op::kKvScore) return std::make_unique<ScoreProblem>(row);
  return std::make_unique<MoveProblem>(row);
}

}  // namespace sx::parity
