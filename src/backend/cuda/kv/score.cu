// kv_score. The first kernel multiplies queries and keys on tensor cores: logits go to scratch memory, with the maximum
// and the sum of exponentials of each span of cells. The second weighs the spans of a head against each other, folds
// the chunks and takes the mean over heads and layers. The bound (Quest) needs no logits and is a kernel of its own.
#include "backend/cuda/kv/score.cuh"

namespace sx::cuda {
namespace {

constexpr int kMostHeadDim = 256;
constexpr int kFoldThreads = 512, kFoldWarps = kFoldThreads / 32;
constexpr int kFoldBlocks = 396;
constexpr int kLong = 256;  // cells from which a chunk is folded by a whole warp

// One block: `rounds` sets of 32 / lanes chunks for all pairs: 4 bytes read per cell and pair. Every block weighs the
// spans of all pairs anew (8 bytes each, some 60 per pair). A warp takes every 16th pair; `lanes` lanes fold a chunk,
// the whole warp one that is long. Bound: L2 and latency. All orders depend on the chunk's own borders, on the spans
// and the number of pairs alone. lanes == 1 is for chunks of one cell.
template <int lanes>
__global__ void __launch_bounds__(kFoldThreads, 3)
    fold_kernel(const __grid_constant__ ScoreCall c, Scratch s, int rounds) {
  constexpr int set = 32 / lanes;
  extern __shared__ float2 weights[];  // [pairs]: largest logit, 1 / sum
  __shared__ float totals[kFoldWarps][set];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = lane % lanes, pairs = c.layers * c.heads;
  let_next_start();
  wait_for_previous();
  if (blockIdx.x == 0 && c.kept <= c.chunks) {  // no thread of this kernel reads these places
    for (int i = c.kept + int(threadIdx.x); i <= c.chunks; i += kFoldThreads) c.borders[i] = c.fresh[i - c.kept];
  }
  const auto border = [&](int i) { return i < c.kept ? c.borders[i] : c.fresh[i - c.kept]; };
  if (c.kind != ScoreKind::kLogit) {
    for (int base = 0; base < pairs; base += kFoldThreads / 8) {  // the same number of rounds for all threads
      const int pair = base + int(threadIdx.x / 8);
      const float2* states = s.states + size_t(min(pair, pairs - 1)) * size_t(s.spans);
      float most = -INFINITY, sum = 0;
#pragma unroll 4
      for (int i = threadIdx.x % 8; i < s.spans; i += 8) most = fmaxf(most, states[i].x);
#pragma unroll
      for (int step = 4; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
#pragma unroll 4
      for (int i = threadIdx.x % 8; i < s.spans; i += 8)
        sum = __fadd_rn(sum, __fmul_rn(states[i].y, __expf(__fsub_rn(states[i].x, most))));
#pragma unroll
      for (int step = 4; step > 0; step /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, step));
      if (threadIdx.x % 8 == 0 && pair < pairs) weights[pair] = make_float2(most, __fdiv_rn(1.0f, sum));
    }
    __syncthreads();
  }
  const bool peak = c.kind == ScoreKind::kPeak;
  const auto join = [&](float a, float b) { return peak ? fmaxf(a, b) : __fadd_rn(a, b); };
  for (int round = 0; round < rounds; ++round) {
    const int chunk = (int(blockIdx.x) * rounds + round) * set + lane / lanes;
    const bool valid = chunk < c.chunks;
    const int from = valid ? border(chunk) : 0, to = valid ? border(chunk + 1) : 0;
    const int short_to = to - from < kLong ? to : from;
    int longest = to - from;
#pragma unroll
    for (int step = lanes; step < 32; step *= 2) longest = max(longest, __shfl_xor_sync(kAllLanes, longest, step));
    const auto logits_of = [&](int pair) { return s.logits + size_t(pair) * size_t(s.pitch) - s.base; };  // by cell
    // Four of the cells first, first + step, ... below `last`.
    const auto read = [&](const float* logits, int first, int last, int step, float(&x)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = first + i * step < last ? logits[first + i * step] : -INFINITY;
    };
    // All of them, of which x holds the first four.
    const auto fold = [&](const float* logits, int first, int last, int step, float most, float(&x)[4]) {
      float value = peak ? -INFINITY : 0.0f;
      for (int cell = first; cell < last;) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (c.kind == ScoreKind::kMass) x[i] = __expf(__fsub_rn(x[i], most));
          else if (!peak && cell + i * step >= last) x[i] = 0;
          value = join(value, x[i]);
        }
        cell += 4 * step;
        if (cell < last) read(logits, cell, last, step, x);
      }
      return value;
    };
    float total = 0;
    for (int two = warp; two < pairs; two += 2 * kFoldWarps) {
      float x[2][4];  // of two pairs, so that more is under way
#pragma unroll
      for (int i = 0; i < 2; ++i)
        read(logits_of(min(two + i * kFoldWarps, pairs - 1)), from + part, short_to, lanes, x[i]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int pair = two + i * kFoldWarps;
        if (pair >= pairs) break;  // the same for the warp
        const float* logits = logits_of(pair);
        const float2 weight = c.kind == ScoreKind::kLogit ? make_float2(0, 0) : weights[pair];
        float value = fold(logits, from + part, short_to, lanes, weight.x, x[i]);
#pragma unroll
        for (int step = lanes / 2; step > 0; step /= 2) value = join(value, __shfl_xor_sync(kAllLanes, value, step));
        if (longest >= kLong) {  // the same for the warp
          for (int j = 0; j < set; ++j) {
            const int first = __shfl_sync(kAllLanes, from, j * lanes), last = __shfl_sync(kAllLanes, to, j * lanes);
            if (last - first < kLong) continue;
            float y[4];
            read(logits, first + lane, last, 32, y);
            float whole = fold(logits, first + lane, last, 32, weight.x, y);
#pragma unroll
            for (int step = 16; step > 0; step /= 2) whole = join(whole, __shfl_xor_sync(kAllLanes, whole, step));
            if (lane / lanes == j) value = whole;
          }
        }
        if (peak) value = __expf(__fsub_rn(value, weight.x));
        value = c.kind == ScoreKind::kLogit ? __fdiv_rn(value, float(to - from)) : __fmul_rn(value, weight.y);
        if (c.out && part == 0 && valid) c.out[size_t(pair) * size_t(c.chunks) + size_t(chunk)] = value;
        total = __fadd_rn(total, value);
      }
    }
    if (!c.mean) continue;
    if (part == 0) totals[warp][lane / lanes] = total;
    __syncthreads();
    if (warp == 0 && part == 0 && valid) {
      float sum = totals[0][lane / lanes];
      for (int w = 1; w < min(kFoldWarps, pairs); ++w) sum = __fadd_rn(sum, totals[w][lane / lanes]);
      c.mean[chunk] = __fdiv_rn(sum, float(pairs));
    }
    __syncthreads();
  }
}

// x[8] = the numbers of a word, without their scale.
template <DType type>
__device__ __forceinline__ void widen(const KeyWord<type>& word, float* x) {
  uint32_t part[sizeof(word) / 4];
  memcpy(part, &word, sizeof(word));
#pragma unroll
  for (int i = 0; i < int(sizeof(word) / 4); ++i) {
    if constexpr (type == DType::kBF16) {
      x[2 * i] = __uint_as_float(part[i] << 16);
      x[2 * i + 1] = __uint_as_float(part[i] & 0xffff0000u);
    } else if constexpr (type == DType::kF16) {
      x[2 * i] = f16_value(uint16_t(part[i]));
      x[2 * i + 1] = f16_value(uint16_t(part[i] >> 16));
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) x[4 * i + j] = float(int8_t(part[i] >> (8 * j)));
    }
  }
}

// One block: one chunk and one key head of one layer: smallest and largest number of each dimension over the chunk's
// keys (read once), then one dot product per query head. Bound: memory. Minima and maxima have no order; the dot
// product's depends on the head size alone.
template <DType type>
__global__ void __launch_bounds__(kThreads) bound_kernel(const __grid_constant__ ScoreCall c, bool whole) {
  constexpr int per = 8;  // numbers of a word
  __shared__ float low[kWarps][kMostHeadDim], high[kWarps][kMostHeadDim];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, kv_head = blockIdx.y, chunk = blockIdx.x,
            dim = c.head_dim;
  const int bytes = int(cell_bytes(c.kv)), words = (dim + per - 1) / per;
  int lanes = 1;  // per key
  while (lanes < words) lanes *= 2;
  const int keys = 32 / lanes, word = lane % lanes;  // keys a warp reads at once
  const int layer = layer_of(c, int(blockIdx.z));
  let_next_start();
  wait_for_previous();
  const int from = c.borders[chunk], to = c.borders[chunk + 1];
  float least[per], most[per];
#pragma unroll
  for (int i = 0; i < per; ++i) least[i] = INFINITY, most[i] = -INFINITY;
  if (word < words) {
#pragma unroll 2
    for (int cell = from + warp * keys + lane / lanes; cell < to; cell += kWarps * keys) {
      const size_t at = cell_index(c.kv, layer, c.slot, kv_head, cell);
      float x[per];
      if constexpr (is_nibbles(type)) widen<DType::kF16>(load_nibbles<type>(c.kv, at, word, bytes), x);
      else widen<type>(load_word<type>(c.kv.k + at * size_t(bytes), word, bytes, whole), x);
      if constexpr (type == DType::kQ8_0) {
        const float scale = f16_value(c.kv.k_scale[at * size_t(dim / 32) + size_t(word / 4)]);
#pragma unroll
        for (int i = 0; i < per; ++i) x[i] = __fmul_rn(scale, x[i]);
      }
#pragma unroll
      for (int i = 0; i < per; ++i) least[i] = fminf(least[i], x[i]), most[i] = fmaxf(most[i], x[i]);
    }
  }
  for (int step = lanes; step < 32; step *= 2) {
#pragma unroll
    for (int i = 0; i < per; ++i) {
      least[i] = fminf(least[i], __shfl_xor_sync(kAllLanes, least[i], step));
      most[i] = fmaxf(most[i], __shfl_xor_sync(kAllLanes, most[i], step));
    }
  }
  if (lane < words) {
#pragma unroll
    for (int i = 0; i < per; ++i)
      if (lane * per + i < dim) low[warp][lane * per + i] = least[i], high[warp][lane * per + i] = most[i];
  }
  __syncthreads();
  for (int d = threadIdx.x; d < dim; d += kThreads) {
    for (int w = 1; w < kWarps; ++w)
      low[0][d] = fminf(low[0][d], low[w][d]), high[0][d] = fmaxf(high[0][d], high[w][d]);
  }
  __syncthreads();
  const int group = c.heads / c.kv_heads;
  for (int h = warp; h < group; h += kWarps) {
    const size_t head = size_t(blockIdx.z) * size_t(c.heads) + size_t(kv_head) * size_t(group) + size_t(h);
    float sum = 0;
    for (int d = lane; d < dim; d += 32) {
      const float q = __fmul_rn(c.q[head * size_t(dim) + size_t(d)], c.scale);
      sum = __fadd_rn(sum, __fmul_rn(q, q >= 0 ? high[0][d] : low[0][d]));
    }
    sum = warp_sum(sum);
    if (lane == 0) c.out[head * size_t(c.chunks) + size_t(chunk)] = sum;
  }
}

// One thread: the mean of one chunk over all pairs, 4 bytes read for each. Bound: latency.
__global__ void mean_kernel(const __grid_constant__ ScoreCall c) {
  const int chunk = int(blockIdx.x * blockDim.x + threadIdx.x), pairs = c.layers * c.heads;
  let_next_start();
  wait_for_previous();
  if (chunk >= c.chunks) return;
  float sum = 0;
#pragma unroll 8
  for (int pair = 0; pair < pairs; ++pair) sum = __fadd_rn(sum, c.out[size_t(pair) * size_t(c.chunks) + size_t(chunk)]);
  c.mean[chunk] = __fdiv_rn(sum, float(pairs));
}

void score_bounds(ScoreCall c, float* scratch, bool whole, cudaStream_t stream) {
  if (!c.out) c.out = scratch;
  const auto kernel = c.kv.type == DType::kBF16   ? bound_kernel<DType::kBF16>
                      : c.kv.type == DType::kF16  ? bound_kernel<DType::kF16>
                      : c.kv.type == DType::kQ4_0 ? bound_kernel<DType::kQ4_0>
                      : c.kv.type == DType::kQ4_1 ? bound_kernel<DType::kQ4_1>
                                                  : bound_kernel<DType::kQ8_0>;
  launch(kernel, dim3(unsigned(c.chunks), unsigned(c.kv_heads), unsigned(c.layers)), kThreads, 0, stream, c, whole);
  if (c.mean) launch(mean_kernel, unsigned((c.chunks + kThreads - 1) / kThreads), kThreads, 0, stream, c);
}

template <int lanes>
void launch_fold(const ScoreCall& c, const Scratch& s, cudaStream_t stream) {
  const int sets = (c.chunks + 32 / lanes - 1) / (32 / lanes), rounds = (sets + kFoldBlocks - 1) / kFoldBlocks;
  launch(fold_kernel<lanes>, unsigned((sets + rounds - 1) / rounds), kFoldThreads,
         size_t(c.layers * c.heads) * sizeof(float2), stream, c, s, rounds);
}

}  // namespace

size_t score_scratch_bytes(int heads, int context, int layers) {  // there are never more spans than tiles
  return size_t(layers) * size_t(heads) * size_t(tiles_for(context)) * (kTile * sizeof(float) + sizeof(float2));
}

void kv_score(const ScoreCall& c, void* scratch, cudaStream_t stream) {
  if (c.chunks <= 0 || c.end <= c.first) return;
  const bool whole = cell_bytes(c.kv) % (c.kv.type == DType::kQ8_0 ? 8 : 16) == 0;
  if (c.kind == ScoreKind::kBound) return score_bounds(c, static_cast<float*>(scratch), whole, stream);
  const Scratch s = score_keys<false>(c, scratch, stream);
  // Chunks of one cell are the same by either.
  if (c.chunks == c.end - c.first) launch_fold<1>(c, s, stream);
  else launch_fold<8>(c, s, stream);
}

}  // namespace sx::cuda
