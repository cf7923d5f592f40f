// The loops over one row of norms, activations and soft caps, compiled for every instruction set. They are plain C++
// without contraction to multiply-adds, so all sets have the same bits.
#pragma once
#include "backend/cpu/isa.h"
#include "backend/ops.h"

namespace sx::cpu {

struct RowLoops {
  void (*norm)(const NormArgs& args, const float* x, float* out);
  // out[i] = activation(gate[i]), times up[i] unless up is null.
  void (*activate)(Activation kind, const float* gate, const float* up, float* out, int width);
  void (*cap)(float* x, int width, float cap);
};

const RowLoops& row_loops(Isa isa);

}  // namespace sx::cpu
