#include "backend/cpu/rows.h"

#include <cmath>

#include "backend/cpu/fast_exp.h"
#include "tensor/blocks.h"

namespace sx::cpu {
namespace {

constexpr int kLanes = 16;  // partial sums of a norm: part of the result's definition, never change with the machine
constexpr int kSmall = 1 << 13;  // below this many elements a hand-over to other threads costs more than it saves

// Runs body(row): in one thread where there is little work, else in contiguous ranges of rows per thread.
template <class Body>
void share_rows(ThreadPool& pool, int rows, int width, Body body) {
  if (pool.size() == 1 || rows == 1 || int64_t(rows) * width < kSmall) {
    for (int r = 0; r < rows; ++r) body(r);
    return;
  }
  pool.run([&](int thread) {
    const int first = int(int64_t(rows) * thread / pool.size()), last = int(int64_t(rows) * (thread + 1) / pool.size());
    for (int r = first; r < last; ++r) body(r);
  });
}

float sum_of_squares(const float* x, int width) {
  float lane[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= width; i += kLanes)
    for (int j = 0; j < kLanes; ++j) lane[j] += x[i + j] * x[i + j];
  for (int j = 0; i < width; ++i, ++j) lane[j] += x[i] * x[i];
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
  return lane[0];
}

float sum_of(const float* x, int width) {
  float lane[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= width; i += kLanes)
    for (int j = 0; j < kLanes; ++j) lane[j] += x[i + j];
  for (int j = 0; i < width; ++i, ++j) lane[j] += x[i];
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
  return lane[0];
}

// The mean is taken off first, so that the squares are those of the deviations.
void centred_norm(const NormArgs& args, const float* x, float* out) {
  const float mean = sum_of(x, args.width) / float(args.width);
  for (int i = 0; i < args.width; ++i) out[i] = x[i] - mean;
  const float factor = 1.0f / std::sqrt(sum_of_squares(out, args.width) / float(args.width) + args.eps);
  for (int i = 0; i < args.width; ++i) out[i] = out[i] * factor * args.weight[i];
  for (int i = 0; args.bias && i < args.width; ++i) out[i] += args.bias[i];
}

// tanh(x) within about 1e-7; branch-free as fast_exp is.
inline float fast_tanh(float x) {
  const float e = fast_exp(x < 0 ? 2 * x : -2 * x), t = (1.0f - e) / (1.0f + e);
  return x < 0 ? -t : t;
}

template <Activation kind>
inline float activate(float x) {
  if constexpr (kind == Activation::kSilu) return x / (1.0f + fast_exp(-x));
  if constexpr (kind == Activation::kGeluTanh)
    return 0.5f * x * (1.0f + fast_tanh(0.7978845608028654f * x * (1.0f + 0.044715f * x * x)));
  if constexpr (kind == Activation::kGelu) return 0.5f * x * (1.0f + std::erf(x * 0.7071067811865476f));
  const float positive = x > 0 ? x : 0.0f;
  return positive * positive;
}

template <Activation kind>
void glu_of(const GluArgs& args, ThreadPool& pool) {
  const size_t width = size_t(args.width), stride = args.gated ? 2 * width : width;
  share_rows(pool, args.rows, args.width * 4, [&](int r) {
    const float* gate = args.gate_up + size_t(r) * stride;
    const float* up = gate + args.width;
    float* __restrict out = args.out + size_t(r) * width;
    if (args.gated)
      for (int i = 0; i < args.width; ++i) out[i] = activate<kind>(gate[i]) * up[i];
    else
      for (int i = 0; i < args.width; ++i) out[i] = activate<kind>(gate[i]);
  });
}

}  // namespace

void embed(const EmbedArgs& args, ThreadPool& pool) {
  const int width = static_cast<int>(args.table.columns());
  share_rows(pool, args.rows, width, [&](int r) {
    dequantise(args.table.type, args.table.row(args.tokens[r]), width, args.out + size_t(r) * size_t(width));
  });
}

void norm(const NormArgs& args, ThreadPool& pool) {
  const auto stride = size_t(args.stride > 0 ? args.stride : args.width);
  share_rows(pool, args.rows, args.width, [&](int r) {
    const float* x = args.x + size_t(r) * stride;
    float* out = args.out + size_t(r) * stride;
    if (args.centred) return centred_norm(args, x, out);
    const float factor = 1.0f / std::sqrt(sum_of_squares(x, args.width) / float(args.width) + args.eps);
    for (int i = 0; i < args.width; ++i) out[i] = x[i] * factor * args.weight[i];
  });
}

void rope_table(const RopeTableArgs& args, ThreadPool& pool) {
  share_rows(pool, args.rows, args.dims * 16, [&](int r) {
    float* out = args.table + size_t(r) * size_t(args.dims);
    for (int i = 0; i < args.dims / 2; ++i) {
      const double angle = double(args.positions[r]) * args.frequencies[i];
      out[2 * i] = static_cast<float>(std::cos(angle)) * args.factor;
      out[2 * i + 1] = static_cast<float>(std::sin(angle)) * args.factor;
    }
  });
}

void glu(const GluArgs& args, ThreadPool& pool) {
  switch (args.activation) {
    case Activation::kSilu: return glu_of<Activation::kSilu>(args, pool);
    case Activation::kGeluTanh: return glu_of<Activation::kGeluTanh>(args, pool);
    case Activation::kGelu: return glu_of<Activation::kGelu>(args, pool);
    case Activation::kRelu2: return glu_of<Activation::kRelu2>(args, pool);
  }
}

void soft_cap(const SoftCapArgs& args, ThreadPool& pool) {
  const float inverse = 1.0f / args.cap;
  share_rows(pool, args.rows, args.width * 4, [&](int r) {
    float* x = args.x + size_t(r) * size_t(args.width);
    for (int i = 0; i < args.width; ++i) x[i] = args.cap * fast_tanh(x[i] * inverse);
  });
}

}  // namespace sx::cpu
