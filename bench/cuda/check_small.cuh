// What check_rows.cu and check_choose.cu share: device memory, random numbers, results and timing.
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cuda/runtime/device.h"

namespace check {

inline int failures = 0;

inline void must(bool good, const std::string& what) {
  if (good) return;
  if (++failures <= 20) std::printf("FAILED %s\n", what.c_str());
}

class Memory final : public sx::cuda::DeviceMemory {
 public:
  void* take(size_t bytes, const char* purpose) override {
    void* p = nullptr;
    sx::cuda::check(cudaMalloc(&p, bytes > 0 ? bytes : 1), purpose);
    sx::cuda::check(cudaMemset(p, 0, bytes), purpose);
    all_.push_back(p);
    return p;
  }
  void free_all() {
    sx::cuda::check(cudaDeviceSynchronize(), "kernels");
    for (void* p : all_) cudaFree(p);
    all_.clear();
  }
  ~Memory() override { free_all(); }
  template <class T>
  T* put(const std::vector<T>& x) {
    T* p = static_cast<T*>(take(x.size() * sizeof(T), "data"));
    sx::cuda::check(cudaMemcpy(p, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
    return p;
  }
  template <class T>
  T* make(size_t count) {
    return static_cast<T*>(take(count * sizeof(T), "data"));
  }

 private:
  std::vector<void*> all_;
};

template <class T>
std::vector<T> get(const void* p, size_t count) {
  std::vector<T> x(count);
  sx::cuda::check(cudaDeviceSynchronize(), "kernels");
  sx::cuda::check(cudaMemcpy(x.data(), p, count * sizeof(T), cudaMemcpyDeviceToHost), "download");
  return x;
}

inline uint64_t state = 12345;
inline uint32_t random_bits() {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return uint32_t(state >> 33);
}
inline int random_below(int n) { return int(random_bits() % uint32_t(n)); }
inline float random_float() {  // roughly normal
  float x = 0;
  for (int i = 0; i < 4; ++i) x += float(random_bits() % 20001) / 10000.0f - 1.0f;
  return x * 0.9f;
}
inline std::vector<float> random_floats(size_t n, float scale = 1) {
  std::vector<float> x(n);
  for (float& y : x) y = random_float() * scale;
  return x;
}

// The worst |a - b| / (absolute + relative |b|); names the first element above 1.
inline double compare(const std::string& what, const float* a, const double* b, size_t n, double relative,
                      double absolute) {
  double worst = 0;
  bool told = false;
  for (size_t i = 0; i < n; ++i) {
    double e = std::fabs(double(a[i]) - b[i]) / (absolute + relative * std::fabs(b[i]));
    if (std::isnan(e)) e = 1e30;
    if (e > worst) worst = e;
    if (e > 1 && !told) {
      told = true;
      must(false, what + " element " + std::to_string(i) + ": " + std::to_string(a[i]) + " instead of " +
                      std::to_string(b[i]));
    }
  }
  return worst;
}

// Microseconds per call: a graph of many calls, replayed. call(i, stream) may rotate over buffers by i.
template <class Call>
double time_us(int calls, Call call) {
  cudaStream_t stream;
  sx::cuda::check(cudaStreamCreate(&stream), "stream");
  for (int i = 0; i < 2; ++i) call(i, stream);
  sx::cuda::check(cudaStreamSynchronize(stream), "warm-up");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  sx::cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < calls; ++i) call(i, stream);
  sx::cuda::check(cudaStreamEndCapture(stream, &graph), "capture");
  sx::cuda::check(cudaGraphInstantiate(&exec, graph, 0), "graph");
  cudaEvent_t start, stop;
  cudaEventCreate(&start), cudaEventCreate(&stop);
  float best = 1e30f;
  for (int i = 0; i < 4; ++i) {
    cudaEventRecord(start, stream);
    sx::cuda::check(cudaGraphLaunch(exec, stream), "replay");
    cudaEventRecord(stop, stream);
    sx::cuda::check(cudaStreamSynchronize(stream), "replay");
    float ms = 0;
    cudaEventElapsedTime(&ms, start, stop);
    if (i > 0 && ms < best) best = ms;
  }
  cudaEventDestroy(start), cudaEventDestroy(stop);
  cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaStreamDestroy(stream);
  return double(best) * 1000 / calls;
}
inline void print_time(const char* what, double us, double bytes) {
  const double gbs = bytes / us / 1000;
  std::printf("%-34s %8.2f us %7.0f GB/s %5.1f%%\n", what, us, gbs, gbs / 43.0);
}

}  // namespace check
