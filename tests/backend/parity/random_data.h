// Deterministic test data: every number is a function of a seed text and its place.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace sx::parity {

class Random {
 public:
  explicit Random(std::string_view seed);
  uint64_t bits();
  double uniform();  // (0, 1)
  int below(int n);  // 0..n-1
  float normal();    // mean 0, deviation 1, within 3.5
  std::vector<float> normals(size_t count, float deviation = 1);

 private:
  uint64_t state_;
};

// `count` weights of any float or quantised type with values of order 1; `count` is whole blocks.
std::vector<std::byte> random_weights(Random& random, DType type, int64_t count);

}  // namespace sx::parity
