// Every row of the table on every backend: against the reference within a tolerance, and against itself in other
// batch and with other numbers of threads, bit for bit. One test per backend and op; a failing row is named.
#include <gtest/gtest.h>

#include <cstring>

#include "support/reference_backend.h"
#include "backend/registry.h"
#include "backends.h"
#include "far_backends.h"
#include "problem.h"
#include "support/share.h"
#include "tampered.h"

namespace sx::parity {
namespace {

struct Subject {
  std::string name;
  BackendFactory make;
  Op op;
  bool threaded = true;
};

// Why the subject cannot be tested on this machine, or "".
std::string missing(const Subject& subject) { return subject.name == "cuda" ? why_no_cuda() : ""; }

void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }  // GoogleTest prints bytes else

std::string test_name(const testing::TestParamInfo<Subject>& info) {
  std::string name = info.param.name + "_" + op_name(info.param.op);
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

using Backends = std::vector<std::pair<std::string, BackendFactory>>;

std::vector<Subject> subjects(const Backends& backends, bool threaded = true) {
  std::vector<Subject> out;
  for (const auto& [name, make] : backends) {
    for (int op = 0; op < static_cast<int>(Op::kCount); ++op) {
      out.push_back({name, make, static_cast<Op>(op), threaded});
    }
  }
  return out;
}

template <class Body>
void each_row(const Subject& subject, Body body) {
  TestCases rows;
  for (const OpRow& row : op_table()) {
    if (row.op != subject.op || row.large || !supports(subject.name, row)) continue;
    if (!rows.next()) continue;
    SCOPED_TRACE(row_name(row));
    body(row);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(rows.count(), 10);
  rows.expect_some();
}

Output run_on(const Problem& problem, Backend& backend) {
  const auto instance = problem.make(backend);
  instance->run();
  return instance->output();
}

std::string difference_to_reference(const OpRow& row, const std::string& name, Backend& backend) {
  const auto problem = make_problem(row);
  const auto right = make_reference_backend();
  const Output reference = run_on(*problem, *right);
  Tolerance allowed = tolerance_of(name, row);
  if (row.loud > 1)
    allowed.mean *= row.loud / 2.0, allowed.peak *= row.loud / 2.0;  // errors of scores grow with the queries
  return difference(reference, run_on(*problem, backend), problem->scale(reference), allowed);
}

class Parity : public testing::TestWithParam<Subject> {};

TEST_P(Parity, WithinTolerance) {
  if (const std::string why = missing(GetParam()); !why.empty()) GTEST_SKIP() << why;
  each_row(GetParam(), [&](const OpRow& row) {
    const auto backend = GetParam().make(2);
    EXPECT_EQ(difference_to_reference(row, GetParam().name, *backend), "");
  });
}

class Invariance : public testing::TestWithParam<Subject> {};

TEST_P(Invariance, SameBitsInAnyCompany) {
  if (const std::string why = missing(GetParam()); !why.empty()) GTEST_SKIP() << why;
  int turn = 0;
  each_row(GetParam(), [&](const OpRow& row) {
    if (!decodes(GetParam().name, row)) return;
    const auto problem = make_problem(row);
    Output first;
    const int other = 2 + turn++ % 3;  // one thread, and two, three and four alternately
    for (const int threads : {1, other}) {
      if (threads > 1 && !GetParam().threaded) break;
      const auto backend = GetParam().make(threads);
      const auto instance = problem->make(*backend);
      instance->run();
      const Output output = instance->output();
      if (threads == 1) first = output;
      ASSERT_EQ(output.values.size(), first.values.size());
      EXPECT_EQ(std::memcmp(output.values.data(), first.values.data(), first.values.size() * sizeof(float)), 0)
          << threads << " threads give other bits than one";
      const bool few = threads > 1 || (!GetParam().threaded && GetParam().name != "cuda");
      const bool guard = !is_kv(row.op);
      EXPECT_EQ(variance(*instance, output, output.rows - (guard ? 1 : 0), few), "") << threads << " threads";
    }
  });
}

BackendFactory reference() {
  return [](int) { return make_reference_backend(); };
}

INSTANTIATE_TEST_SUITE_P(Backends, Parity, testing::ValuesIn(subjects(test_backends())), test_name);
INSTANTIATE_TEST_SUITE_P(Backends, Invariance, testing::ValuesIn(subjects(test_backends())), test_name);
INSTANTIATE_TEST_SUITE_P(Reference, Invariance, testing::ValuesIn(subjects({{"reference", reference()}}, false)),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Far, Parity, testing::ValuesIn(subjects({{"far", far_backend()}}, false)), test_name);
INSTANTIATE_TEST_SUITE_P(Far, Invariance, testing::ValuesIn(subjects({{"far", far_backend()}}, false)), test_name);
INSTANTIATE_TEST_SUITE_P(Cuda, Parity, testing::ValuesIn(subjects({{"cuda", cuda_backend()}}, false)), test_name);
INSTANTIATE_TEST_SUITE_P(Cuda, Invariance, testing::ValuesIn(subjects({{"cuda", cuda_backend()}}, false)), test_name);

}  // namespace
}  // namespace sx::parity
