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

void CudaBackend::mixture(const NormArgs& before, const LinearArgs& router, const ExpertsArgs& args) {
  if (dry()) return;
  const auto& weights = static_cast<const CudaMatrix&>(*router.weight);
  ExpertsCall call = experts_call(args);
  const bool prompt = in_step() && step_->prompt;  // whose routers multiply in another order
  if (prompt || !few_experts_serve(*call.gate_up, *call.down, call.args) || !router_serves(before, weights))
    return Backend::mixture(before, router, args);
  last_half_ = call.gate_up->half();
  void* const x16 = shadow(before.out, call.args.rows, before.width);
  call.x16 = x16;
  call.norm = {.out = nullptr,
               .out16 = x16,
               .half = last_half_,
               .x = before.x,
               .weight = before.weight,
               .rows = call.args.rows,
               .width = before.width,
               .eps = before.eps};
  call.router = static_cast<const float*>(weights.segments()[0].data);
  call.router_bias = router.bias;
  run_experts(call);
  unwritten_ = before.out;
}

}  // namespace sx::cuda
