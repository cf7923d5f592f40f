// What a device that is missing or too small says.
#include <gtest/gtest.h>

#include <string>

#include "backend/registry.h"
#include "base/error.h"

namespace sx {
namespace {

TEST(CudaMemory, TooLittleNamesThePurpose) {
  if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << why;
  const auto backend = make_cuda_backend({.device = 0, .memory = size_t(4) << 20});
  EXPECT_NO_THROW(backend->allocate(1000, "a little"));
  try {
    backend->allocate(size_t(16) << 20, "the buffer of a test");
    ADD_FAILURE() << "64 MiB of 4";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the buffer of a test"), std::string::npos) << error.what();
  }
}

TEST(CudaMemory, MissingDevicesAreNamed) {
  if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << why;
  try {
    make_cuda_backend({.device = 99});
    ADD_FAILURE() << "device 99";
  } catch (const Error& error) { EXPECT_NE(std::string(error.what()).find("99"), std::string::npos) << error.what(); }
}

TEST(FarMemoryTest, WithoutCudaTheReasonIsGiven) {
  const std::string why = why_no_cuda();
  if (why.empty()) GTEST_SKIP() << "there is a device";
  try {
    make_cuda_backend({});
    ADD_FAILURE() << "a backend without a device";
  } catch (const Error& error) { EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what(); }
}

}  // namespace
}  // namespace sx
