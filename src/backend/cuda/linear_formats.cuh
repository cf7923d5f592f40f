// Weights as operands of the tensor cores, format by format.
//
// mma.m16n8k16 with 16 outputs as A rows and 8 tokens as B columns. Which k an operand column stands for is free as
// long as A and B agree, so of 32 consecutive k lane (g, t) takes k = 8t .. 8t+7 of rows g and g + 8: one 16-byte piece
// each, elements 0..3 for a first product and 4..7 for a second one. Its tokens are read the same way. Four such steps
// are a group of 128 k.
//
// A format has: Source (where a tile of 16 outputs lies), Group (registers of one group), load(source, group registers,
// group, step) and operands(registers, step, a[8]): the A operands of the two products of a step. load(.., step) may
// overwrite whatever steps 0..step needed, so that registers are refilled as soon as they are free; calling it for
// steps 0..3 loads all. Kernels that keep weights in shared memory instead fetch stages of kStageSteps steps: each
// thread copies what it will need itself to its own places (fetch), and reads it back before operands() of each step
// (read).
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/linear_kernels.h"

namespace sx::cuda {

// Weights stream by once: past L1, and never written while kernels run, so they may be read before wait_for_previous().
// (Not as ld.global.nc: the assembler moves those behind the wait.)
__device__ __forceinline__ uint4 load_weights(const uint4* from, bool wanted) {
  uint4 v;
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.s32 p, %5, 0;\n"
      " mov.b32 %0, 0;\n mov.b32 %1, 0;\n mov.b32 %2, 0;\n mov.b32 %3, 0;\n"
      " @p ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w) : "l"(from), "r"(int(wanted)));
  return v;
}

__device__ __forceinline__ uint2 load_weights(const uint2* from, bool wanted) {
  uint2 v;
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.s32 p, %3, 0;\n mov.b32 %0, 0;\n mov.b32 %1, 0;\n"
      " @p ld.global.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];\n}\n"
      : "=&r"(v.x), "=&r"(v.y) : "l"(from), "r"(int(wanted)));
  return v;
}

// The same to shared memory, completed by wait_for_copies(). Zeros unless wanted.
template <int kBytes>
__device__ __forceinline__ void fetch_weights(uint32_t to_shared, const void* from, bool wanted) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n"
                 ::"r"(to_shared), "l"(from), "r"(wanted ? 16 : 0) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;\n"
                 ::"r"(to_shared), "l"(from), "n"(kBytes), "r"(wanted ? kBytes : 0) : "memory");
  }
}
__device__ __forceinline__ void read_shared(uint4& v, uint32_t from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void read_shared(uint32_t& x, uint32_t& y, uint32_t from) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n" : "=r"(x), "=r"(y) : "r"(from) : "memory");
}
__device__ __forceinline__ void read_shared(uint32_t& v, uint32_t from) {
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(v) : "r"(from) : "memory");
}

// Activations come from the kernel before: volatile, so that they stay behind wait_for_previous().
__device__ __forceinline__ uint4 load_tokens(const uint16_t* from, bool wanted) {
  uint4 v;
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.s32 p, %5, 0;\n"
      " mov.b32 %0, 0;\n mov.b32 %1, 0;\n mov.b32 %2, 0;\n mov.b32 %3, 0;\n"
      " @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w) : "l"(from), "r"(int(wanted)) : "memory");
  return v;
}

// Elements k .. k + 7 of a row that starts anywhere; zeros from `end` on.
__device__ __forceinline__ uint4 load_odd(const uint16_t* row, int k, int end) {
  const volatile uint16_t* from = row;
  uint32_t v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = k + i < end ? from[k + i] : 0;
  return {v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16};
}

__device__ __forceinline__ uint32_t bits_of(__half2 h) { return *reinterpret_cast<const uint32_t*>(&h); }
__device__ __forceinline__ __half2 half2_of(uint32_t bits) { return *reinterpret_cast<const __half2*>(&bits); }

// 1024 + what the mask leaves of both halves of the word, in one instruction: (word & mask) | 0x64006400.
template <uint32_t kMask>
__device__ __forceinline__ __half2 over_1024(uint32_t word) {
  uint32_t v;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;\n" : "=r"(v) : "r"(word), "n"(kMask), "n"(0x64006400u));
  return half2_of(v);
}

// c += a b for one step's first or second product; low = 0 or 4 in the operands.
template <Half kHalf>
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t* a, uint32_t b0, uint32_t b1) {
  if constexpr (kHalf == Half::kBF16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// 16-bit floats, row-major [out, in]. kOdd: in is no multiple of 8, so rows are not aligned.
template <Half kType, bool kOdd = false>
struct HalfFormat {
  static constexpr Half kHalf = kType;
  static constexpr bool kOddRows = kOdd, kAsLoaded = true;  // operands are loaded registers, or computed ones
  static constexpr int kAhead = 1, kFarAhead = 2;  // groups in flight in registers, and where blocks are few
  static constexpr int kStageSteps = 2;
  static constexpr uint32_t kStageBytes = 4 * 4096;  // of 256 threads: [step][low or high][thread]
  struct Source {
    const uint16_t *low, *high;     // rows g and g + 8, from this lane's first element on
    int end;                        // elements from `low` on that belong to the part
    __device__ Source(const LinearTask& task, int tile, int lane, int end_group) {
      const int g = lane >> 2, t = lane & 3;
      const auto row = [&](int r) {  // behind the last output: read that one, the result is dropped
        return static_cast<const uint16_t*>(task.data) +
               size_t(min(tile * kTileOut + r, task.out - 1)) * size_t(task.in) + 8 * t;
      };
      low = row(g);
      high = row(g + 8);
      end = min(task.in, end_group * kGroup) - 8 * t;
    }
  };
  struct Group { uint4 low[4], high[4]; };

  static __device__ __forceinline__ void load(const Source& from, Group& to, int group, int step) {
    const int k = group * kGroup + step * 32;
    if constexpr (kOdd) {
      to.low[step] = load_odd(from.low, k, from.end);
      to.high[step] = load_odd(from.high, k, from.end);
    } else {
      to.low[step] = load_weights(reinterpret_cast<const uint4*>(from.low + k), k < from.end);
      to.high[step] = load_weights(reinterpret_cast<const uint4*>(from.high + k), k < from.end);
    }
  }

  static __device__ __forceinline__ void fetch(const Source& from, uint32_t to, int stage) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int k = stage * 64 + step * 32;
      fetch_weights<16>(to + uint32_t(step) * 8192 + threadIdx.x * 16, from.low + (k < from.end ? k : 0), k < from.end);
      fetch_weights<16>(to + uint32_t(step) * 8192 + 4096 + threadIdx.x * 16, from.high + (k < from.end ? k : 0),
                        k < from.end);
    }
  }
  static __device__ __forceinline__ void read(uint32_t from, Group& to, int step) {
    read_shared(to.low[step], from + uint32_t(step) * 8192 + threadIdx.x * 16);
    read_shared(to.high[step], from + uint32_t(step) * 8192 + 4096 + threadIdx.x * 16);
  }

  static __device__ __forceinline__ void operands(const Group& group, int step, uint32_t (&a)[8]) {
    const uint4 low = group.low[step], high = group.high[step];
    a[0] = low.x, a[1] = high.x, a[2] = low.y, a[3] = high.y;
    a[4] = low.z, a[5] = high.z, a[6] = low.w, a[7] = high.w;
  }
};

// Scale and offset of a row's four steps: {scale, offset} pairs, or scales alone. [tile][group][low or high][g][32 /
// sub][4 steps]
template <bool kOffset>
struct Scales {
  using Words = std::conditional_t<kOffset, uint4, uint2>;
  static __device__ __forceinline__ const Words* start(const LinearTask& task, int tile, int lane) {
    const int subs = 32 / task.sub;
    const size_t at = size_t(tile) * size_t(task.parts.groups) * 16 * size_t(subs);
    return static_cast<const Words*>(task.scales) + at + (lane >> 2) * subs + (subs == 2 ? (lane & 3) >> 1 : 0);
  }
  // Scale and offset of a step, each twice; the offset only where there is one.
  static __device__ __forceinline__ void of_step(const Words& words, int step, __half2& scale, __half2& offset) {
    if constexpr (kOffset) {
      const __half2 both = half2_of(step == 0 ? words.x : step == 1 ? words.y : step == 2 ? words.z : words.w);
      scale = __low2half2(both);
      offset = __high2half2(both);
    } else {
      const __half2 two = half2_of(step < 2 ? words.x : words.y);
      scale = step % 2 == 0 ? __low2half2(two) : __high2half2(two);
    }
  }
};

// Unsigned nibbles, a lane's share of a group in 16 bytes: [tile][group][low or high][lane], one word per step. Element
// 2i of the eight sits at bit 4i of the word, element 2i + 1 at bit 16 + 4i.
struct Q4Format {
  static constexpr Half kHalf = Half::kF16;
  static constexpr bool kOddRows = false, kAsLoaded = false;
  static constexpr int kAhead = 2, kFarAhead = 4;
  static constexpr int kStageSteps = 4;
  static constexpr uint32_t kStageBytes = 4 * 4096;  // [low, high, low scales, high scales][thread]
  struct Source {
    const uint4 *data, *scales;
    int end;
    __device__ Source(const LinearTask& task, int tile, int lane, int end_group) : end(end_group) {
      tile = min(tile, (task.out + kTileOut - 1) / kTileOut - 1);
      data = static_cast<const uint4*>(task.data) + size_t(tile) * size_t(task.parts.groups) * 64 + lane;
      scales = Scales<true>::start(task, tile, lane);  // sub is always 32
    }
  };
  struct Group { uint4 low, high, low_scales, high_scales; };

  static __device__ __forceinline__ void load(const Source& from, Group& to, int group, int step) {
    if (step != 3) return;
    const bool wanted = group < from.end;
    to.low = load_weights(from.data + size_t(group) * 64, wanted);
    to.high = load_weights(from.data + size_t(group) * 64 + 32, wanted);
    to.low_scales = load_weights(from.scales + size_t(group) * 16, wanted);
    to.high_scales = load_weights(from.scales + size_t(group) * 16 + 8, wanted);
  }

  static __device__ __forceinline__ void fetch(const Source& from, uint32_t to, int stage) {
    const bool wanted = stage < from.end;
    const size_t at = wanted ? size_t(stage) : 0;
    to += threadIdx.x * 16;
    fetch_weights<16>(to, from.data + at * 64, wanted);
    fetch_weights<16>(to + 4096, from.data + at * 64 + 32, wanted);
    fetch_weights<16>(to + 8192, from.scales + at * 16, wanted);
    fetch_weights<16>(to + 12288, from.scales + at * 16 + 8, wanted);
  }
  static __device__ __forceinline__ void read(uint32_t from, Group& to, int step) {
    if (step != 0) return;
    from += threadIdx.x * 16;
    read_shared(to.low, from);
    read_shared(to.high, from + 4096);
    read_shared(to.low_scales, from + 8192);
    read_shared(to.high_scales, from + 12288);
  }

  // 1024 + q is put together from bits, q = that - 1024 is exact, and the fused product rounds once.
  static __device__ __forceinline__ void expand(uint32_t word, __half2 scale, __half2 offset, uint32_t* a) {
    const __half2 base = half2_of(0x64006400u), sixteenth = half2_of(0x2c002c00u), minus64 = half2_of(0xd400d400u);
    const uint32_t next = word >> 8;
    const __half2 q0 = __hsub2(over_1024<0x000f000fu>(word), base);
    const __half2 q1 = __hfma2(over_1024<0x00f000f0u>(word), sixteenth, minus64);  // (1024 + 16 q) / 16 - 64
    const __half2 q2 = __hsub2(over_1024<0x000f000fu>(next), base);
    const __half2 q3 = __hfma2(over_1024<0x00f000f0u>(next), sixteenth, minus64);
    a[0] = bits_of(__hfma2(q0, scale, offset));
    a[2] = bits_of(__hfma2(q1, scale, offset));
    a[4] = bits_of(__hfma2(q2, scale, offset));
    a[6] = bits_of(__hfma2(q3, scale, offset));
  }

  static __device__ __forceinline__ void operands(const Group& group, int step, uint32_t (&a)[8]) {
    const auto word = [&](const uint4& v) { return step == 0 ? v.x : step == 1 ? v.y : step == 2 ? v.z : v.w; };
    __half2 scale, offset;
    Scales<true>::of_step(group.low_scales, step, scale, offset);
    expand(word(group.low), scale, offset, a);
    Scales<true>::of_step(group.high_scales, step, scale, offset);
    expand(word(group.high), scale, offset, a + 1);
  }
};

// Bytes q + 128, a lane's share of two steps in 16 bytes: [tile][group][low or high][steps 0-1 or 2-3][lane].
template <bool kOffset>
struct Q8Format {
  static constexpr Half kHalf = Half::kF16;
  static constexpr bool kOddRows = false, kAsLoaded = false;
  static constexpr int kAhead = 1, kFarAhead = 2;
  using Words = typename Scales<kOffset>::Words;
  static constexpr int kStageSteps = 2;
  static constexpr uint32_t kScales = sizeof(Words) / 2;  // bytes that two steps need
  static constexpr uint32_t kStageBytes =
      2 * 4096 + 2 * 256 * kScales;  // [low or high][thread], [low or high scales][thread]
  struct Source {
    const uint4* data;
    const Words* scales;
    int end, subs;
    __device__ Source(const LinearTask& task, int tile, int lane, int end_group) : end(end_group), subs(32 / task.sub) {
      tile = min(tile, (task.out + kTileOut - 1) / kTileOut - 1);
      data = static_cast<const uint4*>(task.data) + size_t(tile) * size_t(task.parts.groups) * 128 + lane;
      scales = Scales<kOffset>::start(task, tile, lane);
    }
  };
  struct Group { uint4 low[2], high[2]; Words low_scales, high_scales; };

  static __device__ __forceinline__ void load(const Source& from, Group& to, int group, int step) {
    if (step % 2 == 0) return;
    const bool wanted = group < from.end;
    const uint4* data = from.data + size_t(group) * 128 + (step / 2) * 32;
    to.low[step / 2] = load_weights(data, wanted);
    to.high[step / 2] = load_weights(data + 64, wanted);
    if (step != 3) return;
    const Words* scales = from.scales + size_t(group) * 16 * size_t(from.subs);
    to.low_scales = load_weights(scales, wanted);
    to.high_scales = load_weights(scales + 8 * from.subs, wanted);
  }

  static __device__ __forceinline__ void fetch(const Source& from, uint32_t to, int stage) {
    const bool wanted = stage / 2 < from.end;
    const size_t at = wanted ? size_t(stage / 2) : 0;
    const uint4* data = from.data + at * 128 + (stage & 1) * 32;
    const Words* scales = from.scales + at * 16 * size_t(from.subs);
    const uint32_t second = (stage & 1) * kScales;  // steps 2 and 3 have the other half of the words
    fetch_weights<16>(to + threadIdx.x * 16, data, wanted);
    fetch_weights<16>(to + 4096 + threadIdx.x * 16, data + 64, wanted);
    to += 8192 + threadIdx.x * kScales;
    fetch_weights<int(kScales)>(to, reinterpret_cast<const char*>(scales) + second, wanted);
    fetch_weights<int(kScales)>(to + 256 * kScales, reinterpret_cast<const char*>(scales + 8 * from.subs) + second,
                                wanted);
  }
  static __device__ __forceinline__ void read(uint32_t from, Group& to, int step) {
    if (step != 0) return;
    read_shared(to.low[0], from + threadIdx.x * 16);
    read_shared(to.high[0], from + 4096 + threadIdx.x * 16);
    from += 8192 + threadIdx.x * kScales;
    if constexpr (kOffset) {
      read_shared(to.low_scales.x, to.low_scales.y, from);
      read_shared(to.high_scales.x, to.high_scales.y, from + 256 * kScales);
    } else {
      read_shared(to.low_scales.x, from);
      read_shared(to.high_scales.x, from + 256 * kScales);
    }
  }

  static __device__ __forceinline__ void expand(uint32_t word, __half2 scale, __half2 offset, uint32_t* a) {
    const __half2 base = half2_of(0x64806480u);  // 1024 + 128
    const __half2 q0 = __hsub2(half2_of(__byte_perm(word, 0x64646464u, 0x4140)), base);
    const __half2 q1 = __hsub2(half2_of(__byte_perm(word, 0x64646464u, 0x4342)), base);
    a[0] = bits_of(kOffset ? __hfma2(q0, scale, offset) : __hmul2(q0, scale));
    a[2] = bits_of(kOffset ? __hfma2(q1, scale, offset) : __hmul2(q1, scale));
  }

  static __device__ __forceinline__ void operands(const Group& group, int step, uint32_t (&a)[8]) {
    const uint4 low = group.low[step / 2], high = group.high[step / 2];
    __half2 scale, offset = half2_of(0);
    Scales<kOffset>::of_step(group.low_scales, step, scale, offset);
    expand(step % 2 ? low.z : low.x, scale, offset, a);
    expand(step % 2 ? low.w : low.y, scale, offset, a + 4);
    Scales<kOffset>::of_step(group.high_scales, step, scale, offset);
    expand(step % 2 ? high.z : high.x, scale, offset, a + 1);
    expand(step % 2 ? high.w : high.y, scale, offset, a + 5);
  }
};

// The end of THE ORDER: a finished sum meets bias and what was there.
__device__ __forceinline__ void store_result(const LinearTask& task, int row, int out, float sum) {
  float* to = task.result + size_t(row) * size_t(task.out_stride) + out;
  if (task.bias) sum = __fadd_rn(sum, task.bias[out]);
  if (task.accumulate) sum = __fadd_rn(sum, *to);
  *to = sum;
}

}  // namespace sx::cuda
