// The machine's measured peaks (read bandwidth, arithmetic), with which benchmarks compare.
#pragma once

namespace sx::cpu {

// Operations one call performs, in registers only; 0 means the instruction set has no such unit.
struct PeakKernels {
  double (*int8)();    // 8-bit dot products; returns operations done (a multiply-add is two)
  double (*float16)(); // 16-bit (else 32-bit) float multiply-adds
};

struct Peaks {
  double read_gb_per_s, int8_gop_per_s, float16_gflop_per_s;  // 0: not known
};
Peaks measure_peaks(int threads);  // 0: one per core

PeakKernels peak_kernels_neon_i8mm();
PeakKernels peak_kernels_neon_dot();
PeakKernels peak_kernels_avx2();
PeakKernels peak_kernels_avx512();

}  // namespace sx::cpu
