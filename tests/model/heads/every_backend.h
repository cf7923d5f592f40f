// For tests that hold heads to goldens: the backends, and how far a result is off.
#pragma once
#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "backend/registry.h"
#include "support/reference_backend.h"

namespace sx::testing {

inline std::vector<std::unique_ptr<Backend>> all_backends() {
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(make_reference_backend());
  for (const cpu::Isa isa : cpu::available_isas()) out.push_back(make_cpu_backend({.threads = 2, .isa = isa}));
  return out;
}

// Largest |got - want| / max(1, |want|); NaN stays.
inline double worst_error(std::span<const float> want, const float* got) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::fabs(double(got[i]) - want[i]) / std::max(1.0, std::fabs(double(want[i])));
    worst = error <= worst ? worst : error;
  }
  return worst;
}

}  // namespace sx::testing
