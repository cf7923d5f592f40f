// What linear_vnni.cc needs of linear_amx.cc.
#pragma once
#include <cstddef>

#include "backend/cpu/linear/linear_kernels.h"

namespace sx::cpu {

// With one activation scale per 64 inner values, but for kBytes: one per 32.
enum class AmxStore { kNibbles, kBytes, kSix, kSuperBytes };

// How linear_vnni.cc has packed a part's group-blocks.
struct AmxFormat {
  AmxStore store;
  bool centred;  // weights are nibble - 8
  bool wide;     // scales and offsets are f32, else f16
  bool offset;
  bool halves;  // a scale for 16 inner values, else for 32
};

// The first `tiles` tiles of 16 rows of a job (the last of them may have fewer) with AMX. The bits are those of the
// VNNI kernels.
void amx_run(const LinearJob& job, const AmxFormat& format, int tiles);
size_t amx_panel_bytes();
bool amx_built();

}  // namespace sx::cpu
