// What draft heads do the same way: weights in a backend's layout, and features of the target's states.
#pragma once
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "backend/backend.h"
#include "model/heads/head_file.h"

namespace sx {

// The states of the rows `which` in each tap, side by side: features [rows, taps * target width], or these rows `into`
// it.
void take_features(const HeadConfig& config, std::span<const float* const> taps, std::span<const int32_t> which,
                   float* features, Backend& backend, std::span<const int32_t> into = {});

class HeadWeights {
 public:
  HeadWeights(const HeadFile& file, Backend& backend) : file_(file), backend_(backend) {}

  // One matrix of these tensors, stacked by output rows. Their bytes in the file may leave memory.
  std::unique_ptr<Matrix> matrix(std::initializer_list<std::string> names);
  // The elements of these tensors one behind another, as f32; null if the first is absent.
  const float* vector(std::initializer_list<std::string> names);
  float number(const std::string& name) const;  // the first element of this tensor, which is there
  size_t bytes() const { return bytes_; }       // of the matrices made so far

 private:
  const HeadFile& file_;
  Backend& backend_;
  size_t bytes_ = 0;
};

}  // namespace sx
