// The library of the CUDA backend as a program meets it: not there, something else, another version.
#include <gmock/gmock.h>

#include <fstream>
#include <functional>

#include "backend/cuda/loader.h"
#include "backend/registry.h"
#include "base/error.h"
#include "support/model_writer.h"

namespace sx {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& e) { return e.what(); }
  return "";
}

TEST(CudaLoader, SaysWhatIsMissing) {
  testing::TempFolder folder;
  const std::string missing = folder.file("libspecextend_cuda.so");
  EXPECT_THAT(error_of([&] { cuda::load_plugin(missing); }),
              AllOf(HasSubstr("CUDA backend is not installed or does not load"), HasSubstr(missing)));
  std::ofstream(missing) << "no library";
  EXPECT_THAT(error_of([&] { cuda::load_plugin(missing); }), HasSubstr(missing));
}

TEST(CudaLoader, RefusesOtherLibraries) {
  EXPECT_THAT(error_of([&] { cuda::load_plugin("libc.so.6"); }),
              HasSubstr("'libc.so.6' is not SpecExtend's CUDA backend"));
}

TEST(CudaLoader, RefusesOtherVersions) {
  EXPECT_THAT(error_of([&] { cuda::load_plugin(SX_OTHER_PLUGIN); }),
              AllOf(HasSubstr(SX_OTHER_PLUGIN), HasSubstr("belongs to another version"), HasSubstr("of-yesterday")));
}

// A request for the device says why there is none.
TEST(CudaLoader, AnErrorOfTheBackendHasTheReason) {
  const std::string why = why_no_cuda();
  if (why.empty()) GTEST_SKIP() << "this machine has a CUDA device";
  EXPECT_EQ(error_of([] { make_cuda_backend({}); }), "device cuda: " + why);
}

}  // namespace
}  // namespace sx
