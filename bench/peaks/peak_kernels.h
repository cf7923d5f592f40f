// Kernels that measure the arithmetic peaks of an instruction set.
#pragma once

namespace sx::cpu {

// Each kernel works in registers only and returns how many operations it did. A null kernel: the set has no such unit.
struct PeakKernels {
  double (*int8)();     // 8-bit dot products (a multiply-add is two operations)
  double (*float16)();  // 16-bit (else 32-bit) float multiply-adds
};

PeakKernels peak_kernels_neon_i8mm();
PeakKernels peak_kernels_neon_dot();
PeakKernels peak_kernels_avx2();
PeakKernels peak_kernels_avx512();
PeakKernels peak_kernels_vnni();

}  // namespace sx::cpu
