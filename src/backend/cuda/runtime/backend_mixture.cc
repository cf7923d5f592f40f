// The feed-forward of mixtures.
#include "backend/cuda/linear/experts_few.h"
#include "backend/cuda/runtime/backend.h"
#include "base/error.h"

namespace sx::cuda {

void CudaBackend::run_experts(ExpertsCall& call) {
  const ExpertsArgs& args = call.args;
  const size_t bytes =
      experts_scratch_bytes(args.rows, args.gate_up->experts(), args.used, args.gate_up->in(), args.down->in());
  experts_rows(call, scratch(experts_, bytes, "rows of experts"), stream_);
  shadow_.of = nullptr;
  written(args.out);
}

ExpertsCall CudaBackend::experts_call(const ExpertsArgs& args) const {
  ExpertsCall call{static_cast<const CudaExperts*>(args.gate_up), static_cast<const CudaExperts*>(args.down), args,
                   in_step() && padding_ ? block_.view().rows : nullptr, nullptr};
  call.args.rows = padded(args.rows);
  return call;
}

void CudaBackend::experts(const ExpertsArgs& args) {
  if (dry()) return;
  SX_ASSERT(args.x != unwritten_);
  ExpertsCall call = experts_call(args);
  if (few_experts_serve(*call.gate_up, *call.down, call.args))
    call.x16 = half_of(args.x, call.args.rows, *call.gate_up);
  run_experts(call);
}

}  // namespace sx::cuda
