// The problem of kv_retrieve: two refreshes of a working store by two queries. Chunks have scores far enough apart that
// every backend must choose the same cells, or scores that are equal, where the later chunk must win.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "heads.h"
#include "kv/chunk_choice.h"

namespace sx::parity {
namespace {

constexpr int kMarked = 8;      // the last numbers of a head, which are not rotated, carry the score of a key's chunk
constexpr float kStep = 0.35f;  // between the logits of two chunks
constexpr int kSlot = 1, kSlots = 2;

class RetrieveProblem final : public Problem {
 public:
  explicit RetrieveProblem(const OpRow& row) : Problem(row), random_(row_name(row)), heads_(row, random_) {
    SX_ASSERT(row.rotated() + kMarked <= row.head_dim);
    for (int c = 0; c < row.history; c += row.chunk) borders_.push_back(c);
    borders_.push_back(row.history);
    const auto plan = plan_even_chunks(borders_, row.budget, row.sink, row.recent);
    SX_ASSERT(plan && plan->take > 0 && plan->take < plan->last - plan->first);
    plan_ = *plan;
    const int chunks = static_cast<int>(borders_.size()) - 1;
    std::vector<int> level(static_cast<size_t>(chunks));
    std::iota(level.begin(), level.end(), 0);
    for (int i = chunks; i > 1; --i)
      std::swap(level[static_cast<size_t>(i - 1)], level[static_cast<size_t>(random_.below(i))]);
    for (int& x : level) x = row.ties ? x / 5 : x - chunks / 2;
    // The two queries look at marks of their own, so that they rank the chunks differently.
    for (int layer = 0; layer < kLayers; ++layer) {
      cells_.push_back(random_.normals(product(row.history, heads_.width())));
      probe_.push_back(random_.normals(static_cast<size_t>(heads_.width())));
      for (int i = 0; i < heads_.q_width(); ++i)  // it looks at all chunks alike
        if (i % row.head_dim >= row.head_dim - kMarked) probe_.back()[static_cast<size_t>(i)] = 0;
      for (int c = 0; c < row.history; ++c)
        for (int h = row.heads; h < row.heads + row.kv_heads; ++h)
          mark_key(cell_key(layer, c, h), level, c / row.chunk + (row.each_head ? 11 * layer + 5 * h : 0));
    }
    for (int turn = 0; turn < 2; ++turn) {
      q_.push_back(random_.normals(product(kLayers, heads_.q_width())));
      for (size_t i = 0; i < q_.back().size(); ++i) {
        const int d = static_cast<int>(i) % row.head_dim, mark = d - (row.head_dim - kMarked);
        if (mark < 0) q_.back()[i] *= row.ties ? 1.0f : 0.05f;
        else q_.back()[i] = mark / (kMarked / 2) == turn ? 1.0f : 0.0f;
      }
    }
  }
  std::unique_ptr<Instance> make(Backend& backend) const override;
  std::vector<float> scale(const Output& reference) const override {
    std::vector<float> sizes = run_sizes(reference.values, row_.head_dim, 1e-3f);
    std::fill(sizes.begin() + static_cast<ptrdiff_t>(product(kLayers, heads_.q_width())), sizes.end(),
              1e-3f);  // cells are exact
    return sizes;
  }
  Cost cost() const override {
    const double bytes = static_cast<double>(dtype_info(row_.type).bytes) / dtype_info(row_.type).block;
    return {2 * bytes * row_.kv_heads * row_.head_dim * row_.history * row_.rows, 0};
  }

 private:
  friend class RetrieveInstance;
  float* cell_key(int layer, int cell, int head) {
    return cells_[static_cast<size_t>(layer)].data() + product(cell, heads_.width()) + product(head, row_.head_dim);
  }
  void mark_key(float* key, const std::vector<int>& level, int chunk) const {
    const int chunks = static_cast<int>(level.size());
    const float unit = kStep * std::sqrt(static_cast<float>(row_.head_dim)) / (kMarked / 2);
    for (int d = 0; d < row_.head_dim - kMarked && row_.ties; ++d)
      key[d] = 0;  // then equal chunks are equal in all bits
    for (int d = 0; d < kMarked; ++d) {
      const int at = (d < kMarked / 2 ? chunk : chunk * 7 + 3) % chunks;
      key[row_.head_dim - kMarked + d] = unit * static_cast<float>(level[static_cast<size_t>(at)]);
    }
  }
  Random random_;
  Heads heads_;
  std::vector<int32_t> borders_;
  EvenPlan plan_;
  std::vector<std::vector<float>> cells_, probe_;  // per layer [history, width], [width]
  std::vector<std::vector<float>> q_;              // per turn [layers, q_width]
};

class RetrieveInstance final : public Instance {
 public:
  RetrieveInstance(const RetrieveProblem& problem, Backend& backend) : p_(problem), backend_(backend) {
    const OpRow& row = p_.row_;
    from_ = p_.heads_.make_kv(backend, kSlots, row.history);
    work_ = p_.heads_.make_kv(backend, kSlots, row.budget + 1);
    p_.heads_.reserve(backend, 1, row.history);
    desk_ = p_.heads_.make_desk(backend);
    for (int layer = 0; layer < kLayers; ++layer)
      p_.heads_.fill(backend, desk_, p_.cells_[static_cast<size_t>(layer)], *from_, layer, kSlot);
    for (const auto& q : p_.q_) q_.push_back(upload(backend, q));
    choice_ = backend.make_choice(row.budget * (row.each_head ? kLayers * row.kv_heads : 1));
    scores_.resize(product(kLayers * row.heads, static_cast<int>(p_.borders_.size())));
    reduced_.resize(p_.borders_.size());
  }
  void run() override {
    held_ = 0;
    refresh(0);
    refresh(1);
  }
  Output output() override {
    Output out{kLayers, p_.heads_.q_width(), {}};
    probe(out.values);
    const auto cells = choice_->cells();
    out.values.insert(out.values.end(), cells.begin(), cells.end());
    while (out.values.size() % static_cast<size_t>(out.columns) != 0) out.values.push_back(-1);
    out.rows = static_cast<int>(out.values.size()) / out.columns;
    return out;
  }
  // The choice stands: nothing is moved, and nothing may change. (The probe was stored behind the last place.)
  std::vector<float> again(std::span<const int> rows) override {
    refresh(1);
    const Output all = output();
    std::vector<float> out;
    for (const int r : rows) out.insert(out.end(), all.row(r), all.row(r) + all.columns);
    return out;
  }

 private:
  void refresh(int turn) {
    const OpRow& row = p_.row_;
    KvRetrieveArgs a{};
    a.score = {nullptr,
               q_[static_cast<size_t>(turn)],
               row.heads,
               row.kv_heads,
               row.head_dim,
               1 / std::sqrt(static_cast<float>(row.head_dim)),
               from_.get(),
               0,
               kSlot,
               p_.borders_,
               static_cast<ScoreKind>(row.kind)};
    const int both[] = {1, 0}, in_order[] = {0, 1};
    static_assert(std::size(in_order) == kLayers);
    a.score.layers = row.each_head ? std::span(in_order) : std::span(both).first(static_cast<size_t>(row.rows));
    a.per_cell = row.kind == 0, a.each_head = row.each_head;
    a.budget = row.budget, a.sink = row.sink, a.recent = row.recent, a.plan = p_.plan_;
    a.from = from_.get(), a.to = work_.get(), a.slot = kSlot;
    a.compact = row.delta == 0, a.shift = row.tree ? 9 : 0, a.shift_before = a.shift, a.top = 1 << 20;
    a.held = held_, a.since = row.history;
    a.frequencies = p_.heads_.frequencies().data(), a.dims = row.rotated(), a.style = row.style;
    a.scores = scores_, a.reduced = reduced_, a.order = &order_, a.moves = &moves_;
    backend_.kv_retrieve(a, *choice_);
    held_ = p_.plan_.count;
  }
  void probe(std::vector<float>& out) {
    for (int layer = 0; layer < kLayers; ++layer) {
      p_.heads_.decode(backend_, desk_, p_.probe_[static_cast<size_t>(layer)].data(), *work_, layer,
                       {kSlot, p_.plan_.count});
      out.insert(out.end(), desk_.out, desk_.out + p_.heads_.q_width());
    }
  }

  const RetrieveProblem& p_;
  Backend& backend_;
  std::unique_ptr<KvStore> from_, work_;
  std::unique_ptr<KvChoice> choice_;
  std::vector<const float*> q_;
  Desk desk_;
  std::vector<float> scores_, reduced_;
  std::vector<uint64_t> order_;
  std::vector<KvMove> moves_;
  int held_ = 0;
};

std::unique_ptr<Instance> RetrieveProblem::make(Backend& backend) const {
  return std::make_unique<RetrieveInstance>(*this, backend);
}

}  // namespace

std::unique_ptr<Problem> make_retrieve_problem(const OpRow& row) { return std::make_unique<RetrieveProblem>(row); }

}  // namespace sx::parity
