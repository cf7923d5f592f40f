// The feed-forward of mixtures: rows are sorted by expert, and each expert's matrices run over its rows with the
// kernels of linear layers, which give a row the same bits whatever rows share the call.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "backend/cpu/linear/linear.h"

namespace sx::cpu {

// All experts of a layer as one matrix: the parts of expert e are parts [e * n, (e + 1) * n). parts: n tensors
// [experts, out_i, in].
std::unique_ptr<PackedMatrix> pack_experts(std::span<const Tensor> parts, Isa isa, ThreadPool& pool);

// The memory experts() needs besides its arguments. "Entry": a row together with one of its experts.
class ExpertsScratch {
 public:
  explicit ExpertsScratch(Isa isa) : kernels_(&linear_kernels(isa)) {}
  // For steps within these limits; nothing where they have no experts. Grows only.
  void reserve(const StepLimits& limits, int threads);

 private:
  friend class ExpertsCall;
  struct Job {  // groups of a part of an expert
    int expert, part, first, last;
  };
  const LinearKernels* kernels_;
  int rows_ = 0, experts_ = 0, used_ = 0, width_ = 0, ffn_ = 0, threads_ = 0;
  size_t worker_stride_ = 0;
  std::vector<int32_t> choice_, place_, row_of_;  // [rows, used]; place_: of the row's entries in the order of experts
  std::vector<float> weight_;                     // [rows, used]
  std::vector<int32_t> first_;                    // [experts + 1]: an expert's entries
  std::vector<int32_t> tile_;                     // [experts]: its first tile of quantised activations
  std::vector<int32_t> active_;                   // experts with entries
  std::vector<Job> jobs_;
  Pages x_, gate_up_, inner_, y_;  // [entries, width], [entries, 2 ffn], [entries, ffn], [entries, width]
  Pages act_;                      // quantised activations, tile by tile
  Pages workers_;                  // linear_worker_bytes() of each thread
};

void experts(const ExpertsArgs& args, ThreadPool& pool, ExpertsScratch& scratch);

}  // namespace sx::cpu
