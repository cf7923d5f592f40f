// The comparisons themselves on trial: a backend with a small mistake in every op must be caught by every row of the
// table where the mistake shows, and one whose bits depend on batch by every row with batch.
#include <gtest/gtest.h>

#include <cmath>

#include "support/reference_backend.h"
#include "problem.h"
#include "tampered.h"

namespace sx::parity {
namespace {

// Rows on which the wrong backend is right, or wrong by less than the tolerance must allow.
bool mistake_shows(const OpRow& row) {
  switch (row.op) {
    case Op::kRopeStore: return row.history + row.rows > 1;
    case Op::kAttend:
      if (row.window) return row.window > 1 && row.history >= row.window && row.window <= 512;
      return row.history > 0 &&
             row.history < (dtype_is_quantised(row.type) || dtype_is_quantised(row.kv_types().values) ? 100 : 1000);
    case Op::kChoose:
    case Op::kDistribution:
      if (row.allowed) return row.in >= 31 && (row.allowed == 3 || row.allowed == 5);
      break;
    case Op::kKvMove:  // what rounding a rotated key to 4 bits again may do is as large as a cell that is forgotten
      return row.delta == 0 || (row.type != DType::kQ4_0 && row.type != DType::kQ4_1);
    case Op::kKvScore:  // bounds, in the mean over heads, say little about one head's query
      return row.kind != 3 || !row.mean || !dtype_is_quantised(row.type);
    default: break;
  }
  switch (row.op) {
    case Op::kChoose: return row.in >= 3000 && (row.sampling == 1 || row.sampling == 7);  // flat distributions
    case Op::kDistribution:
      return row.in >= 300 && (row.sampling == 1 || row.sampling == 7);  // many tokens, and not greedy
    case Op::kTopK: return row.in < 300 || row.out == row.in;  // a forgotten token is missed, or its probability
    case Op::kExperts: return row.used > 1 && row.used < row.experts;
    default: return true;
  }
}

TEST(ParityNegative, MistakesAreCaught) {
  int caught = 0;
  for (const OpRow& row : op_table()) {
    if (row.large || !mistake_shows(row)) continue;
    const auto problem = make_problem(row);
    const auto right = make_reference_backend(), wrong = make_wrong_backend(row.op);
    const auto a = problem->make(*right), b = problem->make(*wrong);
    a->run(), b->run();
    const Output reference = a->output();
    EXPECT_NE(difference(reference, b->output(), problem->scale(reference), tolerance(row)), "") << row_name(row);
    ++caught;
  }
  EXPECT_GT(caught, 500);
}

TEST(ParityNegative, VariantBitsAreCaught) {
  int caught = 0;
  for (const OpRow& row : op_table()) {
    const bool no_rows =
        row.op == Op::kKvMove || row.op == Op::kKvCells || row.op == Op::kKvScore || row.op == Op::kKvRetrieve;
    if (row.large || row.rows * row.seqs == 1 || no_rows || row.op == Op::kChoose || row.op == Op::kDistribution) {
      continue;
    }
    const auto problem = make_problem(row);
    const auto variant = make_variant_backend();
    const auto instance = problem->make(*variant);
    instance->run();
    const Output output = instance->output();
    EXPECT_NE(variance(*instance, output, row.rows, true), "") << row_name(row);
    ++caught;
  }
  EXPECT_GT(caught, 300);
}

TEST(ParityNegative, NansAndSizesAreCaught) {
  const Output right{1, 2, {1, 2}};
  const std::vector<float> scale = {1, 1};
  EXPECT_EQ(difference(right, right, scale, {0, 0}), "");
  EXPECT_NE(difference(right, {1, 2, {1, std::nanf("")}}, scale, {1, 1}), "");
  EXPECT_NE(difference(right, {1, 1, {1}}, scale, {1, 1}), "");
  EXPECT_NE(difference(right, {1, 2, {1, 2.5f}}, scale, {1, 0.4}), "");
  EXPECT_NE(difference(right, {1, 2, {1, 2.5f}}, scale, {0.1, 1}), "");
}

}  // namespace
}  // namespace sx::parity
