// Weights as operands of the tensor cores, format by format.
//
// mma.m16n8k16 with 16 outputs as A rows and 8 tokens as B columns. Which k an operand column stands for is free as
// long as A and B agree, so of 32 consecutive k lane (g, t) takes k = 8t .. 8t+7 of rows g and g + 8: one 16-byte piece
// each, elements 0..3 for a first product and 4..7 for a second one. Its tokens are read the same way. Four such steps
// are a group of 128 k.
//
// A format has: Source (where a tile of 16 outputs lies), Group (registers of one group), load(source, group registers,
// group, step) and operands(registers, step, a[8]): the A operands of the two MMAs of a step. load(.., step) may
// overwrite whatever steps 0..step needed, so that registers are refilled as soon as they are free; calling it for
// steps 0..3 loads all. 16-bit floats have fetch and read besides, for many_rows: stages of kStageSteps steps, each
// thread copies what it will need itself to its own places in shared memory, and reads it back before operands() of
// each step.
//
// Quantised weights lie as [tile][group] of kGroupBytes each: the numbers, then the scales, and become f16 in
// registers. Of each 16 consecutive k, which are one MMA, lane (g, t) has 2t, 2t + 1, 2t + 8 and 2t + 9, as ldmatrix
// gives the tokens, and as wgmma wants them.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/runtime/launch.cuh"
#include "backend/cuda/linear/kernels.h"

namespace sx::cuda {

// Weights stream by once: past L1, and never written while kernels run, so they may be read before wait_for_previous().
// (Not as ld.global.nc: the assembler moves those behind the wait.)
__device__ __forceinline__ uint4 load_weights(const uint4* from, bool wanted) {
  uint4 v;
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.s32 p, %5, 0;\n"
      " mov.b32 %0, 0;\n mov.b32 %1, 0;\n mov.b32 %2, 0;\n mov.b32 %3, 0;\n"
      " @p ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(from), "r"(int(wanted)));
  return v;
}

__device__ __forceinline__ uint2 load_weights(const uint2* from, bool wanted) {
  uint2 v;
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.s32 p, %3, 0;\n mov.b32 %0, 0;\n mov.b32 %1, 0;\n"
      " @p ld.global.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];\n}\n"
      : "=&r"(v.x), "=&r"(v.y)
      : "l"(from), "r"(int(wanted)));
  return v;
}

// The same to shared memory, completed by wait_for_copies(). Zeros unless wanted.
template <int kBytes>
__device__ __forceinline__ void fetch_weights(uint32_t to_shared, const void* from, bool wanted) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to_shared), "l"(from),
                 "r"(wanted ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;\n" ::"r"(to_shared), "l"(from), "n"(kBytes),
                 "r"(wanted ? kBytes : 0)
                 : "memory");
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
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(from), "r"(int(wanted))
      : "memory");
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

// What the mask leaves of the word, put into the number `over` of both halves: (word & mask) | over, one instruction.
template <uint32_t kMask, uint32_t kOver>
__device__ __forceinline__ uint32_t put_over(uint32_t word) {
  uint32_t v;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;\n" : "=r"(v) : "r"(word), "n"(kMask), "n"(kOver));
  return v;
}

// c += a b for one step's first or second MMA.
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
  static constexpr bool kOddRows = kOdd, kAsLoaded = true;  // operands are loaded registers
  static constexpr int kAhead = 1, kFarAhead = 2;           // groups in flight in registers, and where blocks are few
  static constexpr int kStageSteps = 2;
  static constexpr uint32_t kStageBytes = 4 * 4096;  // of 256 threads: [step][low or high][thread]
  struct Source {
    const uint16_t *low, *high;  // rows g and g + 8, from this lane's first element on
    int end;                     // elements from `low` on that belong to the part
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
  struct Group {
    uint4 low[4], high[4];
  };

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

// Weights beyond the end keep whatever is in the registers; they are never used.
template <class Words>
__device__ __forceinline__ void load_packed(Words& v, const char* from, bool wanted) {
  if constexpr (sizeof(Words) == 16) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.s32 p, %5, 0;\n"
        " @p ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(from), "r"(int(wanted)));
  } else {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.s32 p, %3, 0;\n"
        " @p ld.global.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];\n}\n"
        : "+r"(v.x), "+r"(v.y)
        : "l"(from), "r"(int(wanted)));
  }
}

// The scales of a group: [low or high][g][4 steps][32 / kSub] of {scale, offset} or scales alone.
template <bool kOffset, int kSub>
struct Scales {
  static constexpr int kWords = 2 * (kOffset ? 2 : 1) * (32 / kSub), kRow = kWords * 4,
                       kBytes = 16 * kRow;  // of a row; of 16
  uint32_t words[kWords];
  __device__ __forceinline__ void load(const char* from, bool wanted) {
    if constexpr (kWords == 2) {
      load_packed(*reinterpret_cast<uint2*>(words), from, wanted);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) load_packed(*reinterpret_cast<uint4*>(words + i), from + i * 4, wanted);
    }
  }
  // Steps 2 half and 2 half + 1 from shared memory, to where steps 0 and 1 are.
  __device__ __forceinline__ void read(uint32_t from, uint32_t half) {
    from += half * (kRow / 2);
    if constexpr (kWords == 2) {
      read_shared(words[0], from);
    } else {
#pragma unroll
      for (int i = 0; i < kWords / 2; i += 2) read_shared(words[i], words[i + 1], from + i * 4);
    }
  }
  // Scale and offset of one of a step's MMAs, each twice; the offset only where there is one.
  __device__ __forceinline__ void get(int step, int product, __half2& scale, __half2& offset) const {
    if constexpr (kOffset) {
      const __half2 both = half2_of(words[kSub == 32 ? step : 2 * step + product]);
      scale = __low2half2(both);
      offset = __high2half2(both);
    } else {
      const __half2 two = half2_of(words[kSub == 32 ? step / 2 : step]);
      scale = (kSub == 32 ? step % 2 : product) == 0 ? __low2half2(two) : __high2half2(two);
    }
  }
};

// base + q of the low (even places) and high rows as f16, to weights: q is exact, and the product, fused with the
// offset, rounds once. Bases of places 0 1 4 5 and of 2 3 6 7.
template <class Scales, bool kOffset>
__device__ __forceinline__ void scale_operands(uint32_t (&a)[8], const Scales& low, const Scales& high, int step,
                                               uint32_t base0, uint32_t base1) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    __half2 scale, offset;
    (i % 2 ? high : low).get(step, i / 4, scale, offset);
    const __half2 q = __hsub2(half2_of(a[i]), half2_of(i / 2 % 2 ? base1 : base0));
    a[i] = bits_of(kOffset ? __hfma2(q, scale, offset) : __hmul2(q, scale));
  }
}

// Where a lane finds its part of a tile's groups; behind the last tile, nothing is loaded.
template <class Format>
struct PackedSource {
  const char *data, *scales;
  int end;
  __device__ __forceinline__ void begin(const LinearTask& task, int tile, int lane, int end_group) {
    const char* start =
        static_cast<const char*>(task.data) + size_t(tile) * size_t(task.parts.groups) * size_t(Format::kGroupBytes);
    data = start + lane * 16;
    scales = start + Format::kDataBytes + (lane >> 2) * Format::S::kRow;
    end = tile * kTileOut < task.out ? end_group : 0;
  }
  __device__ __forceinline__ void move(ptrdiff_t bytes, bool there) {
    data += bytes, scales += bytes;
    if (!there) end = 0;
  }
};

// Unsigned nibbles, a lane's part of a group in 16 bytes: [low or high][lane], one word per step. Element 2i of the
// eight sits at bit 4i of the word, element 2i + 1 at bit 16 + 4i. Without offset: 8 more than the number.
template <bool kOffset>
struct Q4Format {
  using S = Scales<kOffset, 32>;
  using Source = PackedSource<Q4Format>;
  static constexpr Half kHalf = Half::kF16;
  static constexpr bool kOddRows = false;
  static constexpr int kAhead = 2, kFarAhead = 4;
  static constexpr int kDataBytes = 1024, kGroupBytes = kDataBytes + S::kBytes;
  static constexpr uint32_t kBase = kOffset ? 0x64006400u : 0x64086408u;    // 1024, and 8 if there is no offset
  static constexpr uint32_t kBase64 = kOffset ? 0x54005400u : 0x54805480u;  // the same with 64
  struct Group {
    uint4 low, high;
    S low_scales, high_scales;
  };

  static __device__ __forceinline__ void load(const Source& from, Group& to, int group, int step) {
    if (step != 3) return;
    const bool wanted = group < from.end;
    const ptrdiff_t at = ptrdiff_t(group) * kGroupBytes;
    load_packed(to.low, from.data + at, wanted);
    load_packed(to.high, from.data + at + 512, wanted);
    to.low_scales.load(from.scales + at, wanted);
    to.high_scales.load(from.scales + at + 8 * S::kRow, wanted);
  }
  static __device__ __forceinline__ void operands(const Group& group, int step, uint32_t (&a)[8]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4& v = i ? group.high : group.low;
      const uint32_t word = step == 0 ? v.x : step == 1 ? v.y : step == 2 ? v.z : v.w, next = word >> 8;
      a[i] = put_over<0x000f000fu, 0x64006400u>(word);
      a[i + 2] = put_over<0x00f000f0u, 0x54005400u>(word);
      a[i + 4] = put_over<0x000f000fu, 0x64006400u>(next);
      a[i + 6] = put_over<0x00f000f0u, 0x54005400u>(next);
    }
    scale_operands<S, kOffset>(a, group.low_scales, group.high_scales, step, kBase, kBase64);
  }

  // Steps 2 half and 2 half + 1 from shared memory, to where steps 0 and 1 are.
  static __device__ __forceinline__ void read(uint32_t from, int lane, uint32_t half, Group& to) {
    const uint32_t data = from + uint32_t(lane) * 16 + half * 8,
                   scales = from + kDataBytes + uint32_t(lane >> 2) * S::kRow;
    read_shared(to.low.x, to.low.y, data);
    read_shared(to.high.x, to.high.y, data + 512);
    to.low_scales.read(scales, half);
    to.high_scales.read(scales + 8 * S::kRow, half);
  }
};

// E2M1 (MXFP4), in the places of Q4Format's nibbles: two bits of exponent and one of mantissa, put where f16 has its
// lowest exponents, are the number times 2^-14, exactly, subnormal ones too.
struct F4Format : Q4Format<false> {
  static __device__ __forceinline__ void operands(const Group& group, int step, uint32_t (&a)[8]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4& v = i ? group.high : group.low;
      const uint32_t word = step == 0 ? v.x : step == 1 ? v.y : step == 2 ? v.z : v.w;
      a[i] = (word << 9 & 0x0e000e00u) | (word << 12 & 0x80008000u);
      a[i + 2] = (word << 5 & 0x0e000e00u) | (word << 8 & 0x80008000u);
      a[i + 4] = (word << 1 & 0x0e000e00u) | (word << 4 & 0x80008000u);
      a[i + 6] = (word >> 3 & 0x0e000e00u) | (word & 0x80008000u);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      __half2 scale, none;
      (i % 2 ? group.high_scales : group.low_scales).get(step, i / 4, scale, none);
      a[i] = bits_of(__hmul2(__hmul2(half2_of(a[i]), half2_of(0x74007400u)), scale));  // by 2^14, then the scale
    }
  }
};

// Bytes q + 128, a lane's part of two steps in 16 bytes: [low or high][steps 0-1 or 2-3][lane].
template <bool kOffset, int kSub>
struct Q8Format {
  using S = Scales<kOffset, kSub>;
  using Source = PackedSource<Q8Format>;
  static constexpr Half kHalf = Half::kF16;
  static constexpr bool kOddRows = false;
  static constexpr int kAhead = 1, kFarAhead = 2;
  static constexpr int kDataBytes = 2048, kGroupBytes = kDataBytes + S::kBytes;
  static constexpr uint32_t kBase = 0x64806480u;  // 1024 + 128
  struct Group {
    uint4 low[2], high[2];
    S low_scales, high_scales;
  };

  static __device__ __forceinline__ void load(const Source& from, Group& to, int group, int step) {
    if (step % 2 == 0) return;
    const bool wanted = group < from.end;
    const ptrdiff_t at = ptrdiff_t(group) * kGroupBytes;
    load_packed(to.low[step / 2], from.data + at + step / 2 * 512, wanted);
    load_packed(to.high[step / 2], from.data + at + step / 2 * 512 + 1024, wanted);
    if (step != 3) return;
    to.low_scales.load(from.scales + at, wanted);
    to.high_scales.load(from.scales + at + 8 * S::kRow, wanted);
  }
  static __device__ __forceinline__ void operands(const Group& group, int step, uint32_t (&a)[8]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4& v = (i ? group.high : group.low)[step / 2];
      const uint32_t first = step % 2 ? v.z : v.x, second = step % 2 ? v.w : v.y;
      a[i] = __byte_perm(first, 0x64646464u, 0x4140);
      a[i + 2] = __byte_perm(first, 0x64646464u, 0x4342);
      a[i + 4] = __byte_perm(second, 0x64646464u, 0x4140);
      a[i + 6] = __byte_perm(second, 0x64646464u, 0x4342);
    }
    scale_operands<S, kOffset>(a, group.low_scales, group.high_scales, step, kBase, kBase);
  }

  static __device__ __forceinline__ void read(uint32_t from, int lane, uint32_t half, Group& to) {  // see Q4Format
    const uint32_t data = from + uint32_t(lane) * 16 + half * 512,
                   scales = from + kDataBytes + uint32_t(lane >> 2) * S::kRow;
    read_shared(to.low[0], data);
    read_shared(to.high[0], data + 1024);
    to.low_scales.read(scales, half);
    to.high_scales.read(scales + 8 * S::kRow, half);
  }
};

// Calls function<format>() with the format of a quantised segment.
template <class Function>
inline void by_format(const WeightSegment& segment, const Function& function) {
  if (segment.format == WeightSegment::Format::kF4) return function.template operator()<F4Format>();
  if (segment.format == WeightSegment::Format::kQ4) {
    segment.has_offset ? function.template operator()<Q4Format<true>>()
                       : function.template operator()<Q4Format<false>>();
  } else if (segment.sub == 32) {
    segment.has_offset ? function.template operator()<Q8Format<true, 32>>()
                       : function.template operator()<Q8Format<false, 32>>();
  } else {
    segment.has_offset ? function.template operator()<Q8Format<true, 16>>()
                       : function.template operator()<Q8Format<false, 16>>();
  }
}

// The end of THE ORDER: bias, then what was there, is added to a complete sum.
__device__ __forceinline__ void store_result(const LinearTask& task, int row, int out, float sum) {
  float* to = task.result + size_t(row) * size_t(task.out_stride) + out;
  if (task.bias) sum = __fadd_rn(sum, task.bias[out]);
  if (task.accumulate) sum = __fadd_rn(sum, *to);
  *to = sum;
}

}  // namespace sx::cuda
