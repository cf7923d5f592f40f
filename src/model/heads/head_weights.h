// Weights of a draft head in a backend's layout: what EagleHead and MedusaHeads load the same way.
#pragma once
#include <initializer_list>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "model/heads/head_file.h"

namespace sx {

class HeadWeights {
 public:
  HeadWeights(const HeadFile& file, Backend& backend) : file_(file), backend_(backend) {}

  // One matrix of these tensors, stacked by output rows. Their bytes in the file may leave memory.
  std::unique_ptr<Matrix> matrix(std::initializer_list<std::string> names);
  // The elements of these tensors one behind another, as f32; null if the first is absent.
  const float* vector(std::initializer_list<std::string> names);
  size_t bytes() const { return bytes_; }  // of the matrices made so far

 private:
  const HeadFile& file_;
  Backend& backend_;
  size_t bytes_ = 0;
};

}  // namespace sx
