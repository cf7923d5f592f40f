// The feed-forward of mixtures: rows of the table and their problem.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "problem.h"
#include "random_data.h"

namespace sx::parity {
namespace {

constexpr float kGuard = 54321;

class ExpertsProblem final : public Problem {
 public:
  explicit ExpertsProblem(const OpRow& row) : Problem(row) {
    Random random(row_name(row));
    const auto width = size_t(row.in), experts = size_t(row.experts), rows = size_t(row.rows);
    add_part(random, gate_up_, row.type, row.out, row.in);
    add_part(random, gate_up_, row.mixed ? DType::kQ8_0 : row.type, row.out, row.in);
    add_part(random, down_, row.type, row.in, row.out);
    x_ = random.normals(rows * width, 2 / std::sqrt(float(row.in)));
    logits_ = random.normals(rows * experts, 2);
    if (rows > 2) {  // rows that agree and rows without a preference: the lower experts
      std::copy_n(logits_.begin(), experts, logits_.begin() + long(experts));
      std::fill_n(logits_.begin() + long(2 * experts), experts, 0.5f);
    }
    if (row.bias)
      gate_up_bias_ = random.normals(experts * 2 * size_t(row.out)), down_bias_ = random.normals(experts * width);
    choice_bias_ = random.normals(experts, 0.3f);
    old_ = random.normals(rows * width);
  }

  std::unique_ptr<Instance> make(Backend& backend) const override;

  std::vector<float> scale(const Output& reference) const override {
    return run_sizes(reference.values, row_.in, 0.1f);
  }
  Cost cost() const override {
    const double weights = 3.0 * row_.in * row_.out;
    const auto& tensor = down_.tensors[0];
    return {double(tensor.bytes()) / row_.experts * 3 * std::min(row_.experts, row_.rows * row_.used),
            2 * weights * row_.rows * row_.used};
  }

 private:
  friend class ExpertsInstance;
  struct Parts {
    std::vector<std::vector<std::byte>> bytes;
    std::vector<Tensor> tensors;
  };
  void add_part(Random& random, Parts& parts, DType type, int out, int in) const {
    parts.bytes.push_back(random_weights(random, type, int64_t(row_.experts) * out * in));
    parts.tensors.push_back({type, 3, {row_.experts, out, in}, parts.bytes.back().data()});
  }
  Parts gate_up_, down_;
  std::vector<float> x_, logits_, gate_up_bias_, down_bias_, choice_bias_, old_;
};

class ExpertsInstance final : public Instance {
 public:
  ExpertsInstance(const ExpertsProblem& problem, Backend& backend) : p_(problem), backend_(backend) {
    const OpRow& row = p_.row();
    backend.reserve({.rows = row.rows,
                     .width = row.in,
                     .heads = 1,
                     .kv_heads = 1,
                     .head_dim = 8,
                     .experts = row.experts,
                     .experts_used = row.used,
                     .expert_ffn = row.out});
    gate_up_ = backend.make_experts(p_.gate_up_.tensors);
    down_ = backend.make_experts(p_.down_.tensors);
    const auto place = [&](const std::vector<float>& values) {
      return values.empty() ? nullptr : upload(backend, values);
    };
    gate_up_bias_ = place(p_.gate_up_bias_), down_bias_ = place(p_.down_bias_), choice_bias_ = place(p_.choice_bias_);
    std::vector<int> all(size_t(row.rows));
    std::iota(all.begin(), all.end(), 0);
    args_ = prepare(all);
  }
  void run() override { backend_.experts(args_); }
  Output output() override {
    const OpRow& row = p_.row();
    Output out{row.rows + 1, row.in, {}};
    out.values.assign(args_.out, args_.out + size_t(row.rows + 1) * size_t(row.in));
    return out;
  }
  std::vector<float> again(std::span<const int> rows) override {
    const ExpertsArgs args = prepare(rows);
    backend_.experts(args);
    return {args.out, args.out + rows.size() * size_t(p_.row().in)};
  }

 private:
  float* pick(const std::vector<float>& from, int width, std::span<const int> rows, bool guard = false) const {
    std::vector<float> out;
    for (const int r : rows) out.insert(out.end(), from.begin() + long(r) * width, from.begin() + long(r + 1) * width);
    if (guard) out.insert(out.end(), size_t(width), kGuard);
    return upload(backend_, out);
  }
  ExpertsArgs prepare(std::span<const int> rows) const {
    const OpRow& row = p_.row();
    return {.out = pick(p_.old_, row.in, rows, true),
            .x = pick(p_.x_, row.in, rows),
            .logits = pick(p_.logits_, row.experts, rows),
            .gate_up = gate_up_.get(),
            .down = down_.get(),
            .gate_up_bias = gate_up_bias_,
            .down_bias = down_bias_,
            .rows = int(rows.size()),
            .used = row.used,
            .routing = row.kind >= 2 ? Routing::kSigmoid : Routing::kSoftmax,
            .renormalise = row.kind % 2 == 0,
            .choice_bias = row.kind == 2 ? choice_bias_ : nullptr,
            .scale = row.kind == 3 ? 2.5f : 1.0f,
            .limit = row.clipped ? 1.5f : 0.0f,
            .accumulate = row.accumulate};
  }

  const ExpertsProblem& p_;
  Backend& backend_;
  std::unique_ptr<Matrix> gate_up_, down_;
  const float *gate_up_bias_ = nullptr, *down_bias_ = nullptr, *choice_bias_ = nullptr;
  ExpertsArgs args_{};
};

std::unique_ptr<Instance> ExpertsProblem::make(Backend& backend) const {
  return std::make_unique<ExpertsInstance>(*this, backend);
}

}  // namespace

std::unique_ptr<Problem> make_experts_problem(const OpRow& row) { return std::make_unique<ExpertsProblem>(row); }

void add_experts(std::vector<OpRow>& table, std::span<const DType> types) {
  int turn = 0;
  for (const DType type : types) {
    const bool k = dtype_info(type).block == 256;
    for (const int rows : {1, 2, 3, 9, 33}) {
      const bool wide = rows % 2 == 0 || rows == 9;
      const int width = k ? wide ? 512 : 256 : wide ? 160 : 64, ffn = k ? 256 : wide ? 64 : 96;
      const int experts = turn % 3 == 0 ? 4 : turn % 3 == 1 ? 16 : 11;
      table.push_back({.op = Op::kExperts,
                       .type = type,
                       .rows = rows,
                       .in = width,
                       .out = ffn,
                       .bias = turn % 2 == 1,
                       .accumulate = turn % 5 < 2,
                       .mixed = turn % 7 == 3,
                       .kind = turn / 2 % 4,
                       .experts = experts,
                       .used = experts == 4 ? 1 + turn % 4 : 8,
                       .clipped = turn % 4 > 1});
      ++turn;
    }
  }
  // The shape of an expert of a 30B mixture with 3B active, for the benchmark.
  for (const int rows : {1, 4, 16, 64})
    table.push_back({.op = Op::kExperts,
                     .type = DType::kMXFP4,
                     .rows = rows,
                     .in = 2048,
                     .out = 768,
                     .experts = 128,
                     .used = 8,
                     .large = true});
}

}  // namespace sx::parity
