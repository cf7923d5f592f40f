// The peaks of this machine, which `specextend bench` prints beside its figures. Only the program links this library;
// it is not installed.
#pragma once

namespace sx {

struct MachinePeaks {
  double read_gb_per_s = 0;     // memory read bandwidth with the given threads
  double int8_gop_per_s = 0;    // fastest 8-bit dot product instruction; 0: not known here
  double bf16_gflop_per_s = 0;  // fastest 16-bit (else 32-bit) multiply-add; 0: not known here
};
MachinePeaks measure_peaks(int threads);  // takes about a second; 0 threads: what thread_count(0) says

}  // namespace sx
