// The feed-forward of mixtures on the device: see ExpertsArgs. Which experts have rows is known to the device only, so
// grids are as large as they could need to be, and blocks without work end at once: a call can be recorded.
#pragma once
#include <span>
#include <vector>

#include "backend/cuda/elementwise/norm_glu_embed.h"
#include "backend/cuda/linear/linear.h"

namespace sx::cuda {

// All experts of a layer; parts: [experts, out_i, in]. On the device part p is one stack of all experts' rows.
class CudaExperts : public CudaMatrix {
 public:
  struct Part {
    int segment;    // of segments()
    int first_row;  // of expert 0, in the segment
    int first_out;  // column of the result
    int out;
  };
  CudaExperts(std::span<const Tensor> parts, DeviceMemory& memory);
  std::span<const Part> parts() const { return parts_; }

 private:
  std::vector<Part> parts_;
};

struct ExpertsCall {
  const CudaExperts *gate_up, *down;
  ExpertsArgs args;         // with device pointers; rows as launched
  const RowInfo* row_info;  // [rows] or null: rows of padding choose no expert
  const void* x16;          // args.x as gate_up->half(); null unless few_experts_serve
  // With a router's weights ([experts, width], [experts] or null) args.logits are not read: the experts are chosen by
  // norm(norm.x), whose 16-bit form goes to norm.out16, which is x16. See router_serves.
  NormCall norm{};
  const float *router = nullptr, *router_bias = nullptr;
};

// Rows that go through the experts at once; more go one chunk after another.
inline constexpr int kExpertRows = 512;
// Whether a norm of this width and this router go with the choice of experts, where few_experts_serve.
bool router_serves(const NormArgs& norm, const CudaMatrix& router);
size_t experts_scratch_bytes(int rows, int experts, int used, int width, int ffn);
void experts_rows(const ExpertsCall& call, void* scratch, cudaStream_t stream);

}  // namespace sx::cuda
