// N ranks give the bits of one: every drafter, cache and rule, with the target spread over ranks by layers and by
// columns, gives the tokens, logits and trees of one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/thread_ranks.h"
#include "engine/engine_cases.h"

namespace sx {
namespace {

using testing::EngineCase;
using testing::EngineRun;
using testing::run_engine;
using testing::ThreadRanks;

std::unique_ptr<Backend> one_process() { return make_cpu_backend({1, std::nullopt}); }

class EngineRanks : public ::testing::TestWithParam<EngineCase> {};

TEST_P(EngineRanks, GiveTheBitsOfOne) {
  const EngineCase& c = GetParam();
  const bool timed = c.name == "with_costs";
  const EngineRun one = run_engine(c.spec, one_process());
  for (const RankSplit split : {RankSplit::kLayers, RankSplit::kColumns}) {
    ThreadRanks ranks(3, split);   // two of them run under mpirun (mpi_cases.cc)
    ranks.first().micro_rows = 1;  // by layers, requests of a batch go through the stages one by one
    const EngineRun many = run_engine(c.spec, ranks.backend());
    EXPECT_EQ(timed ? text_difference(many, one) : tree_difference(many, one), "") << "by " << split_name(split);
    EXPECT_GT(ranks.first().comm().traffic().messages, 100u);
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, EngineRanks, ::testing::ValuesIn(testing::engine_cases()),
                         [](const ::testing::TestParamInfo<EngineCase>& test) { return test.param.name; });

TEST(EngineRanksPlain, GiveTheBitsOfOne) {
  for (const char* kv : {"f32", "bf16", "q8_0", "q4_0"})
    for (const RankSplit split : {RankSplit::kLayers, RankSplit::kColumns})
      for (const int size : {1, 2, 3, 5}) {
        ThreadRanks ranks(size, split);
        EXPECT_EQ(tree_difference(run_engine({}, ranks.backend(), kv), run_engine({}, one_process(), kv)), "")
            << kv << ", " << size << " ranks by " << split_name(split);
      }
}

}  // namespace
}  // namespace sx
