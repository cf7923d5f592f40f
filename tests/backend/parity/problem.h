// A row of the table with its data: inputs that are the same for every backend, and the steps to run them there.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "table.h"

namespace sx::parity {

// [rows, columns]. Some ops add a guard row behind the last: memory that the op must leave alone.
struct Output {
  int rows = 0, columns = 0;
  std::vector<float> values;
  const float* row(int r) const { return values.data() + static_cast<ptrdiff_t>(r) * columns; }
};

struct Cost {
  double bytes = 0;  // that one run must move at least: weights or K/V, and activations
  double flops = 0;
};

// A problem set up on one backend, which must outlive it.
class Instance {
 public:
  virtual ~Instance() = default;
  virtual void run() = 0;       // the op, once; the benchmark repeats it
  virtual Output output() = 0;  // after one run
  // The same rows once more in other batch: only these, in this order ([rows.size(), columns] comes back). Ops on
  // rows put them in one call. Ops on K/V decode each row plainly: its path as committed history, a step of one row.
  virtual std::vector<float> again(std::span<const int> rows) = 0;
};

class Problem {
 public:
  explicit Problem(const OpRow& row) : row_(row) {}
  virtual ~Problem() = default;
  const OpRow& row() const { return row_; }
  virtual std::unique_ptr<Instance> make(Backend& backend) const = 0;
  // The natural size of each output element, in which errors are measured; not 0.
  virtual std::vector<float> scale(const Output& reference) const = 0;
  virtual Cost cost() const = 0;

 protected:
  OpRow row_;
};

std::unique_ptr<Problem> make_problem(const OpRow& row);
std::unique_ptr<Problem> make_row_problem(
    const OpRow& row);  // embed norm linear rope_table glu choose distribution top_k
std::unique_ptr<Problem> make_experts_problem(const OpRow& row);
std::unique_ptr<Problem> make_step_problem(const OpRow& row);  // rope_store attend
std::unique_ptr<Problem> make_retrieve_problem(const OpRow& row);
std::unique_ptr<Problem> make_cell_problem(const OpRow& row);  // kv_move kv_cells kv_score

// Backend memory with these values.
float* upload(Backend& backend, const std::vector<float>& values);
// Root mean square of each run of `length` values, repeated for each of them; at least `least`.
std::vector<float> run_sizes(const std::vector<float>& values, int length, float least);
// Radians per position of the usual RoPE: 10000^(-2i/dims).
std::vector<double> rope_frequencies(int dims);

// "" when `got` is within the tolerance of `reference`; else what is wrong and where.
std::string difference(const Output& reference, const Output& got, const std::vector<float>& scale,
                       Tolerance tolerance);
// "" when run in a batch equals `again` for each row alone and for all rows reversed, bit for bit.
// few: only the first and the last row alone.
std::string variance(Instance& instance, const Output& together, int rows, bool few);

}  // namespace sx::parity
