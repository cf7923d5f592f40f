// Problems of the ops whose rows have nothing to do with each other: embed, norm, linear, rope_table, glu,
// choose, distribution, top_k.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "problem.h"
#include "random_data.h"
#include "tensor/blocks.h"

namespace sx::parity {
namespace {

constexpr float kGuard = 54321;  // what memory holds that no op may write

size_t product(int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }

// Rows of `width` values picked from [any, width].
template <class T>
std::vector<T> pick(const std::vector<T>& from, int width, std::span<const int> rows) {
  std::vector<T> out;
  for (const int r : rows) {
    const auto begin = from.begin() + static_cast<ptrdiff_t>(r) * width;
    out.insert(out.end(), begin, begin + width);
  }
  return out;
}

std::vector<int> all_rows(int rows) {
  std::vector<int> out(static_cast<size_t>(rows));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

// One call of the op over some rows: what to run, and where the result lies, [rows, columns] and a guard row.
struct Call {
  std::function<void()> run;
  float* out = nullptr;
  std::function<void()> finish = [] {};  // brings results of another type there; not part of the op
};
using Prepare = std::function<Call(std::span<const int> rows)>;

class RowInstance final : public Instance {
 public:
  RowInstance(int rows, int columns, Prepare prepare) : columns_(columns), prepare_(std::move(prepare)) {
    call_ = prepare_(all_rows(rows));
    together_.rows = rows + 1;
    together_.columns = columns;
  }
  void run() override { call_.run(); }
  Output output() override {
    call_.finish();
    together_.values.assign(call_.out, call_.out + product(together_.rows, columns_));
    return together_;
  }
  std::vector<float> again(std::span<const int> rows) override {
    const Call call = prepare_(rows);
    call.run();
    call.finish();
    return {call.out, call.out + rows.size() * static_cast<size_t>(columns_)};
  }

 private:
  int columns_;
  Prepare prepare_;
  Call call_;
  Output together_;
};

float* guarded(Backend& backend, size_t rows, int columns) {
  return upload(backend, std::vector<float>((rows + 1) * static_cast<size_t>(columns), kGuard));
}

class EmbedProblem final : public Problem {
 public:
  explicit EmbedProblem(const OpRow& row) : Problem(row) {
    Random random(row_name(row));
    table_bytes_ = random_weights(random, row.type, static_cast<int64_t>(kVocab) * row.in);
    table_ = {row.type, 2, {kVocab, row.in}, table_bytes_.data()};
    for (int r = 0; r < row.rows; ++r) tokens_.push_back(r == 0 ? kVocab - 1 : random.below(kVocab));
  }
  std::unique_ptr<Instance> make(Backend& backend) const override {
    const Tensor table = backend.place_table(table_);
    return std::make_unique<RowInstance>(row_.rows, row_.in, [this, table, &backend](std::span<const int> rows) {
      float* out = guarded(backend, rows.size(), row_.in);
      auto tokens = pick(tokens_, 1, rows);
      const int count = static_cast<int>(tokens.size());
      return Call{[=, this, &backend] { backend.embed({out, tokens.data(), count, table}); }, out};
    });
  }
  std::vector<float> scale(const Output& reference) const override {
    return std::vector<float>(reference.values.size(), 1.0f);
  }
  Cost cost() const override {
    return {static_cast<double>(table_.row_bytes() + sizeof(float) * static_cast<size_t>(row_.in)) * row_.rows, 0};
  }

 private:
  static constexpr int kVocab = 41;
  std::vector<std::byte> table_bytes_;
  Tensor table_;
  std::vector<Token> tokens_;
};

class NormProblem final : public Problem {
 public:
  explicit NormProblem(const OpRow& row) : Problem(row) {
    Random random(row_name(row));
    x_ = random.normals(product(row.rows, row.in), 3);
    weight_ = random.normals(static_cast<size_t>(row.in));
    if (row.rows > 2) std::fill_n(x_.begin() + row.in, row.in, 0.0f);  // eps alone under the root
  }
  std::unique_ptr<Instance> make(Backend& backend) const override {
    const float* weight = upload(backend, weight_);
    return std::make_unique<RowInstance>(row_.rows, row_.in, [this, weight, &backend](std::span<const int> rows) {
      float* out = guarded(backend, rows.size(), row_.in);
      const std::vector<float> values = pick(x_, row_.in, rows);
      const float* x = out;
      if (row_.in_place) std::copy(values.begin(), values.end(), out);
      else x = upload(backend, values);
      const int count = static_cast<int>(rows.size());
      return Call{[=, this, &backend] { backend.norm({out, x, weight, count, row_.in, kEps}); }, out};
    });
  }
  std::vector<float> scale(const Output& reference) const override {
    std::vector<float> sizes = run_sizes(reference.values, row_.in, 1e-3f);
    for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = std::max(sizes[i], std::fabs(reference.values[i]));
    return sizes;
  }
  Cost cost() const override { return {8.0 * row_.rows * row_.in, 4.0 * row_.rows * row_.in}; }

 private:
  static constexpr float kEps = 1e-5f;
  std::vector<float> x_, weight_;
};

class GluProblem final : public Problem {
 public:
  explicit GluProblem(const OpRow& row) : Problem(row) {
    Random random(row_name(row));
    gate_up_ = random.normals(product(row.rows, 2 * row.in), 4);
    if (row.in > 20) gate_up_[3] = 90, gate_up_[5] = -90, gate_up_[7] = 0, gate_up_[9] = -200, gate_up_[11] = 1e4f;
  }
  std::unique_ptr<Instance> make(Backend& backend) const override {
    return std::make_unique<RowInstance>(row_.rows, row_.in, [this, &backend](std::span<const int> rows) {
      float* out = guarded(backend, rows.size(), row_.in);
      const float* gate_up = upload(backend, pick(gate_up_, 2 * row_.in, rows));
      const int count = static_cast<int>(rows.size());
      return Call{[=, this, &backend] { backend.glu({out, gate_up, count, row_.in}); }, out};
    });
  }
  std::vector<float> scale(const Output& reference) const override {
    std::vector<float> sizes = reference.values;
    for (float& size : sizes) size = std::max(1.0f, std::fabs(size));
    return sizes;
  }
  Cost cost() const override { return {12.0 * row_.rows * row_.in, 4.0 * row_.rows * row_.in}; }

 private:
  std::vector<float> gate_up_;
};

class RopeTableProblem final : public Problem {
 public:
  explicit RopeTableProblem(const OpRow& row) : Problem(row), frequencies_(rope_frequencies(row.head_dim)) {
    Random random(row_name(row));
    for (int r = 0; r < row.rows; ++r) positions_.push_back(r < 3 ? r : random.below(100000));
  }
  std::unique_ptr<Instance> make(Backend& backend) const override {
    return std::make_unique<RowInstance>(row_.rows, row_.head_dim, [this, &backend](std::span<const int> rows) {
      float* out = guarded(backend, rows.size(), row_.head_dim);
      auto positions = pick(positions_, 1, rows);
      return Call{[=, this, &backend] {
                    backend.rope_table({out, positions.data(), static_cast<int>(positions.size()), frequencies_.data(),
                                        row_.head_dim, 1 + static_cast<float>(row_.delta) / 10});
                  },
                  out};
    });
  }
  std::vector<float> scale(const Output& reference) const override {
    return std::vector<float>(reference.values.size(), 1.0f);
  }
  Cost cost() const override { return {4.0 * row_.rows * row_.head_dim, 20.0 * row_.rows * row_.head_dim}; }

 private:
  std::vector<double> frequencies_;
  std::vector<int32_t> positions_;
};

class LinearProblem final : public Problem {
 public:
  explicit LinearProblem(const OpRow& row) : Problem(row) {
    Random random(row_name(row));
    const int first = row.mixed ? row.out / 3 : row.out, second = row.mixed ? row.out / 3 - 1 : 0;
    add_part(random, row.type, first);
    if (row.mixed) add_part(random, DType::kF32, second), add_part(random, DType::kQ8_0, row.out - first - second);
    x_ = random.normals(product(row.rows, row.in));
    if (row.rows >= 3) {  // a row of zeros, and half a row of zeros: scales of 0 in whatever the activations become
      std::fill_n(x_.begin() + row.in, row.in, 0.0f);
      std::fill_n(x_.begin() + 2 * row.in, row.in / 2, 0.0f);
    }
    if (row.bias) bias_ = random.normals(static_cast<size_t>(row.out));
    old_ = random.normals(product(row.rows, row.out + row.pad));
  }
  std::unique_ptr<Instance> make(Backend& backend) const override {
    backend.reserve({.rows = row_.rows, .width = row_.in, .heads = 1, .kv_heads = 1, .head_dim = 8});
    const std::shared_ptr<Matrix> matrix = backend.make_matrix(parts_);
    const float* bias = bias_.empty() ? nullptr : upload(backend, bias_);
    const int stride = row_.out + row_.pad;
    return std::make_unique<RowInstance>(row_.rows, stride, [=, this, &backend](std::span<const int> rows) {
      float* out = guarded(backend, rows.size(), stride);
      const std::vector<float> old = pick(old_, stride, rows);
      std::copy(old.begin(), old.end(), out);
      const float* x = upload(backend, pick(x_, row_.in, rows));
      const LinearArgs args = {out, x, matrix.get(), bias, static_cast<int>(rows.size()), stride, row_.accumulate};
      return Call{[args, matrix, &backend] { backend.linear(args); }, out};
    });
  }
  // |x| |w| / sqrt(in) times a relative error of one activation is the size of the error's random sum.
  std::vector<float> scale(const Output& reference) const override {
    std::vector<float> sizes(reference.values.size(), 1.0f);
    const std::vector<float> x_size = run_sizes(x_, row_.in, 0);
    std::vector<double> w_size;
    for (const Tensor& part : parts_) {
      std::vector<float> w(static_cast<size_t>(row_.in));
      for (int64_t o = 0; o < part.rows(); ++o) {
        dequantise(part.type, part.row(o), row_.in, w.data());
        w_size.push_back(std::sqrt(std::inner_product(w.begin(), w.end(), w.begin(), 0.0)));
      }
    }
    for (int r = 0; r < row_.rows; ++r) {
      for (int o = 0; o < row_.out; ++o) {
        const size_t at = product(r, row_.out + row_.pad) + static_cast<size_t>(o);
        double size = x_size[product(r, row_.in)] * w_size[static_cast<size_t>(o)] + 1e-3;
        if (row_.bias) size += std::fabs(bias_[static_cast<size_t>(o)]);
        if (row_.accumulate) size += std::fabs(old_[at]);
        sizes[at] = static_cast<float>(size);
      }
    }
    return sizes;
  }
  Cost cost() const override {
    Cost cost = {4.0 * row_.rows * (row_.in + row_.out), 2.0 * row_.rows * row_.in * row_.out};
    for (const Tensor& part : parts_) cost.bytes += static_cast<double>(part.bytes());
    return cost;
  }

 private:
  void add_part(Random& random, DType type, int out) {
    bytes_.push_back(random_weights(random, type, static_cast<int64_t>(out) * row_.in));
    parts_.push_back({type, 2, {out, row_.in}, bytes_.back().data()});
  }
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<Tensor> parts_;
  std::vector<float> x_, bias_, old_;
};

// What choose, distribution and top_k share: rows of logits, and how to sample from them.
class LogitProblem : public Problem {
 public:
  explicit LogitProblem(const OpRow& row) : Problem(row), sampling_(kSettings[static_cast<size_t>(row.sampling)]) {
    Random random(row_name(row));
    logits_ = random.normals(product(row.rows, row.in), row.large ? 2.0f : 3.0f);
    if (row.large) {  // a head as models have it: thirty tokens hold nearly everything
      for (int i = 0; i < 30 * row.rows; ++i) {
        const size_t at = product(i / 30, row.in) + static_cast<size_t>(random.below(row.in));
        logits_[at] = 16 - 0.3f * static_cast<float>(i % 30);
      }
    } else if (row.in >= 5) {
      logits_[1] = logits_[3] = 20;  // a tie at the top of row 0
    }
    if (row.in >= 31) {
      logits_[7] = -std::numeric_limits<float>::infinity();
      logits_[9] = std::numeric_limits<float>::quiet_NaN();
    }
    for (int r = 0; row.allowed && r < row.rows; ++r) allowed_.push_back(pattern(row.allowed, r, random));
    if (sampling_.repeat_penalty == 1 && sampling_.presence_penalty == 0) return;
    for (int i = 0; i < std::min(4, row.in); ++i) {
      bias_.push_back({i, static_cast<float>(i) - 1.5f});
      counts_.push_back({row.in - 1 - i, 1 + i});
    }
  }
  std::vector<float> scale(const Output& reference) const override {
    return std::vector<float>(reference.values.size(), 1.0f);
  }
  Cost cost() const override { return {4.0 * row_.rows * row_.in, 0}; }

 protected:
  void reserve(Backend& backend) const {
    backend.reserve({.rows = row_.rows, .width = 64, .heads = 1, .kv_heads = 1, .head_dim = 8, .vocab = row_.in});
  }
  const float* upload_logits(Backend& backend, std::span<const int> rows) const {
    return upload(backend, pick(logits_, row_.in, rows));
  }
  // logits: of these rows, one after the other.
  std::vector<ChooseRow> choose_rows(const float* logits, std::span<const int> rows) const {
    std::vector<ChooseRow> list;
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto position = static_cast<uint64_t>(100 + rows[i]);
      list.push_back({logits + i * static_cast<size_t>(row_.in), position, &sampling_, bias_, counts_});
      if (!allowed_.empty() && rows[i] % 4 != 3) list.back().allowed = allowed_[static_cast<size_t>(rows[i])].data();
    }
    return list;
  }

 private:
  // 1: half of the tokens. 2: one in forty, and the last. 3: one token. 4: none in the first row, all in others. 5:
  // tokens 7 and 9, which have no finite logit in the first row. Bits behind the vocabulary are set: they mean nothing.
  std::vector<uint32_t> pattern(int number, int r, Random& random) const {
    const int vocab = row_.in, only = random.below(vocab);
    std::vector<uint32_t> bits(static_cast<size_t>((vocab + 31) / 32));
    for (int t = 0; t < static_cast<int>(bits.size()) * 32; ++t) {
      const bool in = t >= vocab    ? true
                      : number == 1 ? random.below(2) == 0
                      : number == 2 ? random.below(40) == 0 || t == vocab - 1
                      : number == 3 ? t == only
                      : number == 4 ? r > 0
                                    : t == 7 || t == 9;
      if (in) bits[static_cast<size_t>(t / 32)] |= 1u << (t % 32);
    }
    return bits;
  }

  static constexpr std::array<Sampling, kSamplings> kSettings = {{
      {},
      {.temperature = 1, .seed = 1},
      {.temperature = 0.7f, .top_k = 4, .seed = 2},
      {.temperature = 1.3f, .top_p = 0.8f, .seed = 3},
      {.temperature = 2, .min_p = 0.1f, .seed = 4},
      {.temperature = 0.8f, .top_k = 40, .top_p = 0.9f, .min_p = 0.02f, .seed = 5},
      {.temperature = 0, .repeat_penalty = 1.3f},
      {.temperature = 1, .presence_penalty = 0.5f, .frequency_penalty = 0.25f, .seed = 6},
      {.temperature = 1, .top_k = 10, .top_p = 0.95f, .repeat_penalty = 1.1f, .frequency_penalty = -0.5f, .seed = 7},
      {.temperature = 0.7f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .seed = 8},
  }};
  Sampling sampling_;
  std::vector<float> logits_;
  std::vector<TokenBias> bias_;
  std::vector<TokenCount> counts_;
  std::vector<std::vector<uint32_t>> allowed_;  // per row, or empty
};

// The output is twice the token, and one more where the row is said to be broken.
class ChooseProblem final : public LogitProblem {
 public:
  using LogitProblem::LogitProblem;
  std::unique_ptr<Instance> make(Backend& backend) const override {
    reserve(backend);
    return std::make_unique<RowInstance>(row_.rows, 1, [this, &backend](std::span<const int> rows) {
      auto list = choose_rows(upload_logits(backend, rows), rows);
      const auto tokens = std::make_shared<std::vector<Token>>(rows.size());
      const auto broken = std::make_shared<std::vector<uint8_t>>(rows.size());
      for (size_t i = 0; i < list.size(); ++i) list[i].broken = broken->data() + i;
      float* out = guarded(backend, rows.size(), 1);
      return Call{[=, this, &backend] {
                    backend.choose({tokens->data(), list, row_.in});
                  },
                  out, [=] {  // below 2^24: exact as floats
                    for (size_t i = 0; i < tokens->size(); ++i) out[i] = float(2 * (*tokens)[i] + (*broken)[i]);
                  }};
    });
  }
};

class ProbabilitiesProblem final : public LogitProblem {
 public:
  using LogitProblem::LogitProblem;
  std::unique_ptr<Instance> make(Backend& backend) const override {
    reserve(backend);
    return std::make_unique<RowInstance>(row_.rows, row_.in, [this, &backend](std::span<const int> rows) {
      const auto list = choose_rows(upload_logits(backend, rows), rows);
      const size_t size = product(static_cast<int>(rows.size()) + 1, row_.in);
      const auto distribution = std::make_shared<std::vector<double>>(size, kGuard);
      float* out = guarded(backend, rows.size(), row_.in);
      return Call{
          [=, this, &backend] {
            for (size_t i = 0; i < list.size(); ++i) {
              backend.probabilities({distribution->data() + i * static_cast<size_t>(row_.in), list[i], row_.in});
            }
          },
          out, [=] { std::copy(distribution->begin(), distribution->end(), out); }};
    });
  }
  std::vector<float> scale(const Output& reference) const override {  // the row's largest
    std::vector<float> sizes;
    for (int r = 0; r < reference.rows; ++r) {
      const float largest = *std::max_element(reference.row(r), reference.row(r + 1));
      sizes.insert(sizes.end(), static_cast<size_t>(row_.in), largest > 0 ? largest : 1e-9f);  // no token is allowed
    }
    return sizes;
  }
};

// The output has a token and its log-probability for each candidate.
class TopKProblem final : public LogitProblem {
 public:
  using LogitProblem::LogitProblem;
  std::unique_ptr<Instance> make(Backend& backend) const override {
    reserve(backend);
    return std::make_unique<RowInstance>(row_.rows, 2 * row_.out, [this, &backend](std::span<const int> rows) {
      const float* logits = upload_logits(backend, rows);
      const int count = static_cast<int>(rows.size());
      const size_t size = product(count + 1, row_.out);
      const auto best = std::make_shared<std::vector<Candidate>>(size, Candidate{54321, kGuard});
      float* out = guarded(backend, rows.size(), 2 * row_.out);
      return Call{[=, this, &backend] {
                    backend.top_k({best->data(), logits, count, row_.in, row_.out});
                  },
                  out,
                  [=] {
                    for (size_t i = 0; i < best->size(); ++i) {
                      out[2 * i] = static_cast<float>((*best)[i].token);
                      out[2 * i + 1] = std::max(-1e6f, (*best)[i].logp);  // -infinity cannot be subtracted
                    }
                  }};
    });
  }
  std::vector<float> scale(const Output& reference) const override {
    std::vector<float> sizes(reference.values.size(), 1.0f);
    for (size_t i = 0; i < sizes.size(); i += 2) sizes[i] = 1e-9f;  // another token is no small error
    return sizes;
  }
};

}  // namespace

std::unique_ptr<Problem> make_row_problem(const OpRow& row) {
  switch (row.op) {
    case Op::kEmbed: return std::make_unique<EmbedProblem>(row);
    case Op::kNorm: return std::make_unique<NormProblem>(row);
    case Op::kLinear: return std::make_unique<LinearProblem>(row);
    case Op::kRopeTable: return std::make_unique<RopeTableProblem>(row);
    case Op::kGlu: return std::make_unique<GluProblem>(row);
    case Op::kChoose: return std::make_unique<ChooseProblem>(row);
    case Op::kDistribution: return std::make_unique<ProbabilitiesProblem>(row);
    case Op::kTopK: return std::make_unique<TopKProblem>(row);
    default: break;
  }
  SX_ASSERT(false);
  return nullptr;
}

}  // namespace sx::parity
