// Linear layers of the CPU backend: out (+)= x W^T (+ bias) for weights of any float or quantised type. Weights are
// repacked once at load into the layout of the instruction set's kernels (linear_kernels.h); a call allocates nothing.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/linear/linear_kernels.h"
#include "base/memory.h"
#include "base/thread_pool.h"

namespace sx::cpu {

class PackedMatrix : public Matrix {
 public:
  // Rows of one type; parts are stacked by outputs.
  struct Part {
    LinearLayout layout;
    int first = 0;  // first output
    int outputs = 0;
    int groups = 0;
    size_t at = 0;                  // byte offset of group 0
    size_t group_bytes = 0;         // from group to group
    const int8_t* table = nullptr;  // values of 4-bit codes: groups are expanded before kernels see them
  };
  size_t bytes() const override { return bytes_; }
  const LinearKernels& kernels() const { return *kernels_; }
  std::span<const Part> parts() const { return parts_; }
  const std::byte* data() const { return pages_.data(); }
  int act_blocks() const { return act_blocks_; }  // act_block of all quantised parts, or'ed; 0: none is quantised

 private:
  friend std::unique_ptr<PackedMatrix> pack_matrix(std::span<const Tensor>, Isa, ThreadPool&);
  friend std::unique_ptr<PackedMatrix> pack_experts(std::span<const Tensor>, Isa, ThreadPool&);
  const LinearKernels* kernels_ = nullptr;
  std::vector<Part> parts_;
  Pages pages_;
  size_t bytes_ = 0;
  int act_blocks_ = 0;
};

// parts: one or more [out_i, in] tensors of equal `in`. Throws sx::Error for types that are no weights.
std::unique_ptr<PackedMatrix> pack_matrix(std::span<const Tensor> parts, Isa isa, ThreadPool& pool);

// Groups [job.first, job.last) of a part: sets the job's weights, layout, outputs and panel. `worker`:
// linear_worker_bytes() of this thread's own, 64-byte aligned.
void run_groups(const PackedMatrix& matrix, const PackedMatrix::Part& part, LinearJob job, std::byte* worker);
size_t linear_worker_bytes(const LinearKernels& kernels, int in);

// The memory linear() needs besides its arguments: quantised activations and per-thread panels.
class LinearScratch {
 public:
  explicit LinearScratch(Isa isa);
  // For calls of up to max_rows rows, inner dimension up to max_in, pools of up to `threads`. Grows only.
  void reserve(int max_rows, int max_in, int threads);

 private:
  friend void linear(const LinearArgs&, const PackedMatrix&, ThreadPool&, LinearScratch&);
  const LinearKernels* kernels_;
  int rows_ = 0, in_ = 0, threads_ = 0;
  size_t own_stride_ = 0, panel_stride_ = 0;
  uint64_t calls_ = 0;
  struct alignas(64) Owner {
    uint64_t call = 0;
  };
  std::vector<Owner> owners_;  // per thread: the call whose activations are in own_
  Pages shared_;               // activations of all rows
  Pages own_;                  // per thread: activations of one tile, then the panel
};

void linear(const LinearArgs& args, const PackedMatrix& matrix, ThreadPool& pool, LinearScratch& scratch);

// The table of a set; throws sx::Error when it does not exist on this architecture.
const LinearKernels& linear_kernels(Isa isa);

}  // namespace sx::cpu
