// What linear_avx512.cc needs of linear_amx.cc.
#pragma once
#include <cstddef>

#include "backend/cpu/linear/linear_kernels.h"

namespace sx::cpu {

// A part of 4-bit weights as linear_avx512.cc packs it: blocks of 32 inner values of 16 outputs, each [scales][offsets]
// [4 quads of inner values][16][4] bytes, quad j in the low and quad j + 4 in the high nibbles.
struct AmxWeights {
  bool centred;     // weights are nibble - 8, without offsets
  bool wide;        // scales and offsets are f32, else f16
  const void* act;  // linear_wide.inl
};

// The first `tiles` tiles of 16 rows of a job (the last of them may have fewer) with AMX. The bits are those of the
// VNNI kernels.
void amx_run(const LinearJob& job, const AmxWeights& weights, int tiles);
size_t amx_panel_bytes();
bool amx_built();

}  // namespace sx::cpu
