// Matrices in fewer bits, made while a model is loaded: a copy of a model's weights that drafts for the model itself.
#pragma once
#include <cstddef>
#include <vector>

#include "base/thread_pool.h"
#include "tensor/tensor.h"

namespace sx {

// Bits per weight of a type.
double weight_bits(DType type);

class Requantiser {
 public:
  // A type that quantise() of tensor/blocks.h can write. sizes_only: the bytes are never read, and need not be made.
  explicit Requantiser(DType type, bool sizes_only = false) : type_(type), sizes_only_(sizes_only), pool_(0) {}

  DType type() const { return type_; }
  // The tensor in this type, rounded to nearest, its bytes in `memory`; or the tensor itself where it has no more bits
  // already, or where its rows are no whole blocks.
  Tensor make(const Tensor& from, std::vector<std::byte>& memory) { return make(from, type_, memory); }
  Tensor make(const Tensor& from, DType type, std::vector<std::byte>& memory);

 private:
  DType type_;
  bool sizes_only_;
  ThreadPool pool_;
};

}  // namespace sx
