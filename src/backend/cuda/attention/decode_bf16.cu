// Attention over K/V cells of one type; a file of its own so that the types compile side by side.
#include "backend/cuda/attention/decode_body.cuh"

namespace sx::cuda {

namespace {
template <int D>
using Cells = HalfCells<D, true>;
}  // namespace

void attend_body_bf16(const AttendBody& body, const AttendSplit& split, cudaStream_t stream) {
  launch_attend_body<Cells>(body, split, stream);
}

}  // namespace sx::cuda
