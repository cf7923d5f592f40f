// What the tests of this folder run on: the CUDA backend, or the CPU backend with memory that the host cannot reach.
#pragma once
#include <gtest/gtest.h>

#include "backend/registry.h"
#include "model/tree_invariance.h"
#include "support/far_backend.h"

namespace sx::testing {

inline TreeSubject far_subject() {
  return {"far", [](int threads) -> std::unique_ptr<Backend> {
            return std::make_unique<FarBackend>(make_cpu_backend({threads, std::nullopt}));
          }};
}
inline TreeSubject cuda_subject() {
  return {"cuda", [](int) { return make_cuda_backend({}); }};
}
inline void PrintTo(const TreeSubject& subject, std::ostream* out) { *out << subject.name; }

class OnDevice : public ::testing::TestWithParam<TreeSubject> {
 protected:
  void SetUp() override {
    if (GetParam().name != "cuda") return;
    if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << why;
  }
};

}  // namespace sx::testing
