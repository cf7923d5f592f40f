// Engines on CUDA: however tokens are drafted, tokens and logits are those of plain decoding, to the byte.
#include <gtest/gtest.h>

#include "backend/registry.h"
#include "engine/engine_cases.h"

namespace sx {
namespace {

using testing::EngineCase;
using testing::EngineRun;
using testing::run_engine;
using testing::text_difference;

class CudaEngine : public ::testing::TestWithParam<EngineCase> {};

TEST_P(CudaEngine, SpeculationChangesNothing) {
  if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << why;
  const EngineRun run = run_engine(GetParam().spec, make_cuda_backend({}));
  if (GetParam().name != "with_costs") { EXPECT_GT(run.drafted, 20); }
  const EngineRun other = run_engine(GetParam().exact ? SpecOptions{} : GetParam().spec, make_cuda_backend({}));
  EXPECT_EQ(text_difference(run, other), "");
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaEngine, ::testing::ValuesIn(testing::engine_cases()),
                         [](const ::testing::TestParamInfo<EngineCase>& test) { return test.param.name; });

TEST(CudaEnginePlain, EveryKvType) {
  if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << why;
  const EngineCase& sd = testing::engine_cases().front();
  for (const char* kv : {"bf16", "f16", "q8_0", "q4_0", "q4_1", "q8_0/q4_0", "q4_1/bf16"})
    EXPECT_EQ(
        text_difference(run_engine(sd.spec, make_cuda_backend({}), kv), run_engine({}, make_cuda_backend({}), kv)), "")
        << kv;
}

TEST(CudaEnginePlain, AnotherTextIsSeen) {  // the comparison can fail: K/V of another type give other logits
  if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << why;
  EXPECT_NE(
      text_difference(run_engine({}, make_cuda_backend({}), "bf16"), run_engine({}, make_cuda_backend({}), "q8_0")),
      "");
}

}  // namespace
}  // namespace sx
