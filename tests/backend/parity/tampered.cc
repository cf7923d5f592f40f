// The two tampered backends: the reference with its arguments, or the last bit of its results, changed.
#include "tampered.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/reference_backend.h"
#include "support/forwarding_backend.h"

namespace sx::parity {
namespace {

class Tampered : public testing::ForwardingBackend {
 public:
  Tampered() : ForwardingBackend(make_reference_backend()) {}
  std::string name() const override { return "tampered"; }
};

class Wrong final : public Tampered {
 public:
  explicit Wrong(Op op) : op_(op) {}

  void embed(const EmbedArgs& a) override {  // the token's neighbour
    std::vector<Token> tokens(a.tokens, a.tokens + a.rows);
    for (Token& t : tokens) t = t > 0 ? t - 1 : t + 1;
    EmbedArgs b = a;
    b.tokens = tokens.data();
    right_->embed(op_ == Op::kEmbed ? b : a);
  }
  void norm(const NormArgs& a) override {  // forgets the last element
    const std::vector<float> x = without_tail(a.x, a.rows, a.width, 1);
    NormArgs b = a;
    b.x = x.data();
    right_->norm(op_ == Op::kNorm ? b : a);
  }
  void linear(const LinearArgs& a) override {  // forgets the last 32 inputs
    const std::vector<float> x = without_tail(a.x, a.rows, a.weight->in(), 32);
    LinearArgs b = a;
    b.x = x.data();
    right_->linear(op_ == Op::kLinear ? b : a);
  }
  void rope_table(const RopeTableArgs& a) override {  // one position late
    std::vector<int32_t> positions(a.positions, a.positions + a.rows);
    for (int32_t& p : positions) ++p;
    RopeTableArgs b = a;
    b.positions = positions.data();
    right_->rope_table(op_ == Op::kRopeTable ? b : a);
  }
  void rope_store(const RopeStoreArgs& a) override {  // the other pairing
    RopeStoreArgs b = a;
    b.style = a.style == RopeStyle::kHalves ? RopeStyle::kInterleaved : RopeStyle::kHalves;
    right_->rope_store(op_ == Op::kRopeStore ? b : a);
  }
  void attend(const AttendArgs& a) override {  // a window one too short, or the last position of the history left out
    AttendArgs b = a;
    std::vector<SeqRows> seqs(a.seqs.begin(), a.seqs.end());
    if (a.window > 1) --b.window;
    for (SeqRows& seq : seqs) {
      if (a.window == 0 && seq.history > 0) --seq.history;
    }
    b.seqs = seqs;
    right_->attend(op_ == Op::kAttend ? b : a);
  }
  void glu(const GluArgs& a) override {  // silu(up) * gate
    std::vector<float> swapped;
    for (int r = 0; r < a.rows; ++r) {
      const float* gate = a.gate_up + static_cast<ptrdiff_t>(r) * 2 * a.width;
      swapped.insert(swapped.end(), gate + a.width, gate + 2 * a.width);
      swapped.insert(swapped.end(), gate, gate + a.width);
    }
    GluArgs b = a;
    b.gate_up = swapped.data();
    right_->glu(op_ == Op::kGlu ? b : a);
  }
  void experts(const ExpertsArgs& a) override {  // the neighbours of the chosen ones
    const auto count = static_cast<size_t>(a.rows) * static_cast<size_t>(a.gate_up->experts());
    std::vector<float> logits(a.logits, a.logits + count);
    for (auto at = logits.begin(); at != logits.end(); at += a.gate_up->experts())
      std::rotate(at, at + 1, at + a.gate_up->experts());
    ExpertsArgs b = a;
    b.logits = logits.data();
    right_->experts(op_ == Op::kExperts ? b : a);
  }
  void kv_move(const KvMoveArgs& a) override {  // forgets the last move
    KvMoveArgs b = a;
    b.moves = a.moves.first(a.moves.size() - 1);
    right_->kv_move(op_ == Op::kKvMove ? b : a);
  }
  void kv_write(KvStore& kv, const KvCellsArgs& a, const std::byte* from) override {  // forgets the last cell
    KvCellsArgs b = a;
    --b.count;
    right_->kv_write(kv, op_ == Op::kKvCells ? b : a, from);
  }
  void kv_score(const KvScoreArgs& a) override {  // each head's query is its neighbour's
    const size_t width = static_cast<size_t>(a.heads * a.head_dim), layers = std::max<size_t>(1, a.layers.size());
    std::vector<float> q(a.q, a.q + layers * width);
    std::rotate(q.begin(), q.begin() + a.head_dim, q.end());
    KvScoreArgs b = a;
    b.q = q.data();
    right_->kv_score(op_ == Op::kKvScore ? b : a);
  }
  void kv_retrieve(const KvRetrieveArgs& a, KvChoice& choice) override {  // the worst instead of the best
    std::vector<float> q(a.score.q,
                         a.score.q + a.score.layers.size() * static_cast<size_t>(a.score.heads * a.score.head_dim));
    for (float& x : q) x = -x;
    KvRetrieveArgs b = a;
    b.score.q = q.data();
    right_->kv_retrieve(op_ == Op::kKvRetrieve ? b : a, choice);
  }
  void choose(const ChooseArgs& a) override {  // the noise of another position, or every token allowed
    std::vector<ChooseRow> rows(a.rows.begin(), a.rows.end());
    for (ChooseRow& row : rows) {
      if (!row.allowed) row.position += 1000;
      row.allowed = nullptr;
    }
    ChooseArgs b = a;
    b.rows = rows;
    right_->choose(op_ == Op::kChoose ? b : a);
  }
  void probabilities(const ProbabilitiesArgs& a) override {  // a slightly other temperature, or every token allowed
    Sampling sampling = *a.row.sampling;
    if (!a.row.allowed) sampling.temperature *= 1.001f;
    ProbabilitiesArgs b = a;
    b.row.allowed = nullptr;
    b.row.sampling = &sampling;
    right_->probabilities(op_ == Op::kDistribution ? b : a);
  }
  void top_k(const TopKArgs& a) override {  // forgets the last logit
    std::vector<float> logits(a.logits, a.logits + static_cast<ptrdiff_t>(a.rows) * a.vocab);
    for (int r = 1; r <= a.rows; ++r) {
      logits[static_cast<size_t>(r * a.vocab - 1)] = -std::numeric_limits<float>::infinity();
    }
    TopKArgs b = a;
    b.logits = logits.data();
    right_->top_k(op_ == Op::kTopK ? b : a);
  }

 private:
  static std::vector<float> without_tail(const float* x, int rows, int width, int count) {
    std::vector<float> out(x, x + static_cast<ptrdiff_t>(rows) * width);
    for (int r = 0; r < rows; ++r) {
      for (int i = std::max(0, width - count); i < width; ++i) out[static_cast<size_t>(r * width + i)] = 0;
    }
    return out;
  }
  Op op_;
};

void nudge(float& x) { x = std::nextafter(x, std::numeric_limits<float>::infinity()); }

class Variant final : public Tampered {
 public:
  void embed(const EmbedArgs& a) override {
    right_->embed(a);
    if (a.rows > 1) nudge(a.out[0]);
  }
  void norm(const NormArgs& a) override {
    right_->norm(a);
    if (a.rows > 1) nudge(a.out[static_cast<ptrdiff_t>(a.rows) * a.width - 1]);
  }
  void linear(const LinearArgs& a) override {
    right_->linear(a);
    if (a.rows > 1) nudge(a.out[static_cast<ptrdiff_t>(a.rows - 1) * a.out_stride]);
  }
  void rope_table(const RopeTableArgs& a) override {
    right_->rope_table(a);
    if (a.rows > 1) nudge(a.table[1]);
  }
  void rope_store(const RopeStoreArgs& a) override {
    right_->rope_store(a);
    if (a.seqs.size() > 1 || a.seqs[0].rows > 1) nudge(a.qkv[0]);
  }
  void attend(const AttendArgs& a) override {
    right_->attend(a);
    if (a.seqs.size() > 1 || a.seqs[0].rows > 1) nudge(a.out[0]);
  }
  void glu(const GluArgs& a) override {
    right_->glu(a);
    if (a.rows > 1) nudge(a.out[0]);
  }
  void experts(const ExpertsArgs& a) override {
    right_->experts(a);
    if (a.rows > 1) nudge(a.out[0]);
  }
  void top_k(const TopKArgs& a) override {
    right_->top_k(a);
    if (a.rows > 1) nudge(a.out[0].logp);
  }
};

}  // namespace

std::unique_ptr<Backend> make_wrong_backend(Op op) { return std::make_unique<Wrong>(op); }
std::unique_ptr<Backend> make_variant_backend() { return std::make_unique<Variant>(); }

}  // namespace sx::parity
