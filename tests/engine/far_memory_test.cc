// The engine on a backend whose memory the host cannot reach (support/far_backend.h): every drafter, cache and rule
// gives the tokens, logits and trees that it gives on the CPU backend, and nothing touches backend memory but ops,
// uploads and downloads.
#include <gtest/gtest.h>

#include "backend/registry.h"
#include "engine/engine_cases.h"
#include "support/far_backend.h"
#include "support/levels_backend.h"

namespace sx {
namespace {

using testing::EngineCase;
using testing::EngineRun;
using testing::FarBackend;
using testing::run_engine;
using testing::text_difference;
using testing::tree_difference;

std::unique_ptr<Backend> near_backend() { return make_cpu_backend({1, std::nullopt}); }
std::unique_ptr<Backend> far_backend() { return std::make_unique<FarBackend>(near_backend()); }

class FarMemory : public ::testing::TestWithParam<EngineCase> {};

TEST_P(FarMemory, GivesWhatNearMemoryGives) {
  const bool timed = GetParam().name == "with_costs";
  const EngineRun near = run_engine(GetParam().spec, near_backend()), far = run_engine(GetParam().spec, far_backend());
  EXPECT_EQ(timed ? text_difference(far, near) : tree_difference(far, near), "");
  EXPECT_GT(far.drafted, timed ? -1 : 20);
  if (GetParam().exact) { EXPECT_EQ(text_difference(far, run_engine({}, far_backend())), ""); }
}

// A backend that grows trees itself: the trees of the host, and the text of plain decoding.
TEST_P(FarMemory, GrowsTheSameTreesItself) {
  auto grows = std::make_unique<testing::TreeGrowthBackend>(far_backend(), 6);
  const EngineCase& c = GetParam();
  const bool timed = c.name == "with_costs";
  const EngineRun found = run_engine(c.spec, std::move(grows));
  if (!timed) {
    EXPECT_EQ(tree_difference(found, run_engine(c.spec, std::make_unique<testing::RefusingBackend>(far_backend(), 6))),
              "");
  }
  if (c.exact) { EXPECT_EQ(text_difference(found, run_engine({}, far_backend())), ""); }
}

INSTANTIATE_TEST_SUITE_P(Engine, FarMemory, ::testing::ValuesIn(testing::engine_cases()),
                         [](const ::testing::TestParamInfo<EngineCase>& test) { return test.param.name; });

TEST(FarMemoryPlain, GivesWhatNearMemoryGives) {
  for (const char* kv : {"f32", "bf16", "q8_0"})
    EXPECT_EQ(tree_difference(run_engine({}, far_backend(), kv), run_engine({}, near_backend(), kv)), "") << kv;
}

TEST(FarMemoryPlain, TreesThatAreTooDeepAreRefused) {
  SpecOptions spec{.preset = "ngram", .draft_model = {}, .settings = {{"nodes", "64"}, {"depth", "64"}}};
  try {
    run_engine(spec, far_backend());
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("depth"), std::string::npos) << error.what();
  }
}

// --- The contract itself: what a caller can get wrong is caught.

struct Far {
  FarBackend backend{near_backend()};
  float* x = backend.allocate(32 * 64, "x");
  float* y = backend.allocate(32 * 64, "y");
  float* weight = backend.allocate(64, "weight");
  std::vector<Token> tokens = {1, 2, 3};
  std::vector<int32_t> positions = {0, 1, 2}, outputs = {2};
  std::vector<SeqRows> seqs = {{0, 3, 0, 0}};
  StepInputs inputs() const { return {tokens, positions, seqs, outputs}; }
};

TEST(FarContract, HostMemoryIsRefused) {
  Far far;
  std::vector<float> host(64 * 3);
  EXPECT_NO_THROW(far.backend.norm({far.y, far.x, far.weight, 3, 64, 1e-5f}));
  EXPECT_THROW(far.backend.norm({far.y, host.data(), far.weight, 3, 64, 1e-5f}), Error);
  EXPECT_THROW(far.backend.norm({host.data(), far.x, far.weight, 3, 64, 1e-5f}), Error);
  EXPECT_THROW(far.backend.download(far.x, far.y, 1), Error);
  EXPECT_THROW(far.backend.upload(host.data(), far.y, 1), Error);
  EXPECT_THROW(far.backend.norm({far.y, far.x, far.weight, 33, 64, 1e-5f}), Error) << "behind the buffer";
}

TEST(FarContract, BackendMemoryIsOutOfReach) {
  Far far;
  EXPECT_DEATH(*static_cast<volatile float*>(far.x) = 1, "");
}

TEST(FarContract, StepsGetTheirArrays) {
  Far far;
  const std::vector<int32_t> other = {0};
  const auto run = [&](auto body) { far.backend.run(far.inputs(), {&far, nullptr, nullptr, 1}, body); };
  EXPECT_NO_THROW(run([&] { far.backend.copy_rows({far.y, far.x, 1, 64, 64, 64, far.outputs.data()}); }));
  EXPECT_THROW(run([&] { far.backend.copy_rows({far.y, far.x, 1, 64, 64, 64, other.data()}); }), Error);
  EXPECT_THROW(run([&] { far.backend.glu({far.y, far.x, 2, 32}); }), Error) << "another number of rows";
  EXPECT_THROW(run([&] { far.backend.rope_table({far.y, other.data(), 3, nullptr, 64, 1}); }), Error);
  EXPECT_THROW(run([&] { far.backend.wait(); }), Error);
}

TEST(FarContract, EqualKeysMeanEqualOps) {
  Far far;
  const auto run = [&](uint64_t plan, const float* from) {
    far.backend.run(far.inputs(), {&far, nullptr, nullptr, plan}, [&] {
      far.backend.copy_rows({far.y, from, 3, 64, 64, 64});
    });
  };
  run(1, far.x);
  run(1, far.x);
  run(2, far.x + 64);
  EXPECT_THROW(run(1, far.x + 64), Error);
}

TEST(FarContract, PaddingIsSpoilt) {
  Far far;
  const std::vector<float> ones(16 * 64, 1.0f);
  far.backend.upload(far.x, ones.data(), ones.size());
  std::vector<float> got(ones.size());
  far.backend.run(far.inputs(), {&far}, [&] { far.backend.copy_rows({far.y, far.x, 3, 64, 64, 64}); });
  far.backend.download(got.data(), far.y, got.size());
  EXPECT_EQ(got[3 * 64 - 1], 1.0f);
  EXPECT_NE(got[3 * 64], got[3 * 64]);
}

}  // namespace
}  // namespace sx
