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
// steps 0..3 loads all. 16-bit floats have fetch and read besides, for many_rows: stages of kStageSteps steps, each thread
// copies what it will need itself to its own places in shared memory, and reads it back before operands() of each step.
//
// Quantised weights lie as [tile][group] of kGroupBytes each: the numbers, then the scales, in the same order in global and
// in shared memory (read). Where 32 elements, a step, share one scale and there is no offset (kScaleAfter; Q4_0, Q8_0,
// Q5_0), the tensor cores multiply whole numbers: base + q, which is put together from bits in an instruction or two, and
// beforehand -base, once for all tiles; the scale meets the step's sum in f32. All else becomes f16 weights in registers.
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

// What the mask leaves of the word, put into the number `over` of both halves: (word & mask) | over, one instruction.
template <uint32_t kMask, uint32_t kOver>
__device__ __forceinline__ uint32_t put_over(uint32_t word) {
  uint32_t v;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;\n" : "=r"(v) : "r"(word), "n"(kMask), "n"(kOver));
  return v;
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

// d = c + a b, f16.
__device__ __forceinline__ void multiply_from(float (&d)[4], const float (&c)[4], const uint32_t* a, uint32_t b0,
                                              uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};\n"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// 16-bit floats, row-major [out, in]. kOdd: in is no multiple of 8, so rows are not aligned.
template <Half kType, bool kOdd = false>
struct HalfFormat {
  static constexpr Half kHalf = kType;
  static constexpr bool kOddRows = kOdd, kScaleAfter = false;
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

// Weights in registers that were loaded too early may be anything; nobody uses them.
template <class Words>
__device__ __forceinline__ void load_packed(Words& v, const char* from, bool wanted) {
  if constexpr (sizeof(Words) == 16) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.s32 p, %5, 0;\n"
        " @p ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : "l"(from), "r"(int(wanted)));
  } else {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.s32 p, %3, 0;\n"
        " @p ld.global.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];\n}\n"
        : "+r"(v.x), "+r"(v.y) : "l"(from), "r"(int(wanted)));
  }
}

// The scales of a group: [low or high][g][32 / kSub][4 steps] of {scale, offset} or scales alone.
template <bool kOffset, int kSub>
struct Scales {
  using Words = std::conditional_t<kOffset, uint4, uint2>;
  static constexpr int kSubs = 32 / kSub, kHigh = 8 * kSubs * int(sizeof(Words)), kBytes = 2 * kHigh;
  static __device__ __forceinline__ int at(int lane) {  // of the low row
    return ((lane >> 2) * kSubs + (kSubs == 2 ? (lane & 3) >> 1 : 0)) * int(sizeof(Words));
  }
  static __device__ __forceinline__ void read(uint32_t from, int lane, uint32_t half, Words& low, Words& high) {
    from += uint32_t(at(lane)) + half * uint32_t(sizeof(Words) / 2);
    if constexpr (kOffset) {
      read_shared(low.x, low.y, from);
      read_shared(high.x, high.y, from + kHigh);
    } else {
      read_shared(low.x, from);
      read_shared(high.x, from + kHigh);
    }
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
  static __device__ __forceinline__ float of_step(const uint2& words, int step) {
    const __half2 two = half2_of(step < 2 ? words.x : words.y);
    return step % 2 == 0 ? __low2float(two) : __high2float(two);
  }
};

// Where a lane finds its share of a tile's groups.
template <class Format>
struct PackedSource {
  const char *data, *scales;
  int end;
  __device__ PackedSource(const LinearTask& task, int tile, int lane, int end_group) : end(end_group) {
    tile = min(tile, (task.out + kTileOut - 1) / kTileOut - 1);
    const char* start =
        static_cast<const char*>(task.data) + size_t(tile) * size_t(task.parts.groups) * size_t(Format::kGroupBytes);
    data = start + lane * 16;
    scales = start + Format::kDataBytes + Format::S::at(lane);
  }
};

// Unsigned nibbles, a lane's share of a group in 16 bytes: [low or high][lane], one word per step. Element 2i of the eight
// sits at bit 4i of the word, element 2i + 1 at bit 16 + 4i. Without offset: 8 more than the number.
template <bool kOffset>
struct Q4Format {
  using S = Scales<kOffset, 32>;
  using Words = typename S::Words;
  using Source = PackedSource<Q4Format>;
  static constexpr Half kHalf = Half::kF16;
  static constexpr bool kOddRows = false, kScaleAfter = !kOffset;
  static constexpr int kAhead = 2, kFarAhead = 4;
  static constexpr int kDataBytes = 1024, kGroupBytes = kDataBytes + S::kBytes;
  // -(1024 + 8) and -(64 + 8), twice each: what elements 0 1, 4 5 and 2 3, 6 7 have too much
  static constexpr uint32_t kMinusBase = 0xe408e408u, kMinusSecond = 0xd480d480u;
  struct Group { uint4 low, high; Words low_scales, high_scales; };

  static __device__ __forceinline__ void load(const Source& from, Group& to, int group, int step) {
    if (step != 3) return;
    const bool wanted = group < from.end;
    const int at = group * kGroupBytes;
    load_packed(to.low, from.data + at, wanted);
    load_packed(to.high, from.data + at + 512, wanted);
    load_packed(to.low_scales, from.scales + at, wanted);
    load_packed(to.high_scales, from.scales + at + S::kHigh, wanted);
  }
  // Steps 2 half and 2 half + 1 from shared memory, to where steps 0 and 1 are.
  static __device__ __forceinline__ void read(uint32_t from, int lane, uint32_t half, Group& to) {
    const uint32_t data = from + uint32_t(lane) * 16 + half * 8;
    read_shared(to.low.x, to.low.y, data);
    read_shared(to.high.x, to.high.y, data + 512);
    S::read(from + kDataBytes, lane, half, to.low_scales, to.high_scales);
  }

  static __device__ __forceinline__ uint32_t word(const uint4& v, int step) {
    return step == 0 ? v.x : step == 1 ? v.y : step == 2 ? v.z : v.w;
  }
  // 1024 + q and 64 + q, exactly.
  static __device__ __forceinline__ void expand(uint32_t word, uint32_t* a) {
    const uint32_t next = word >> 8;
    a[0] = put_over<0x000f000fu, 0x64006400u>(word);
    a[2] = put_over<0x00f000f0u, 0x54005400u>(word);
    a[4] = put_over<0x000f000fu, 0x64006400u>(next);
    a[6] = put_over<0x00f000f0u, 0x54005400u>(next);
  }
  static __device__ __forceinline__ void integers(const Group& group, int step, uint32_t (&a)[8]) {
    expand(word(group.low, step), a);
    expand(word(group.high, step), a + 1);
  }
  // q is exact, and the product, fused with the offset, rounds once.
  static __device__ __forceinline__ void operands(const Group& group, int step, uint32_t (&a)[8]) {
    integers(group, step, a);
    const __half2 bases[2] = {half2_of(kOffset ? 0x64006400u : 0x64086408u), half2_of(kOffset ? 0x54005400u : 0x54805480u)};
    __half2 scale[2], offset[2];
    S::of_step(group.low_scales, step, scale[0], offset[0]);
    S::of_step(group.high_scales, step, scale[1], offset[1]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const __half2 q = __hsub2(half2_of(a[i]), bases[i / 2 % 2]);
      a[i] = bits_of(kOffset ? __hfma2(q, scale[i % 2], offset[i % 2]) : __hmul2(q, scale[i % 2]));
    }
  }
};

// Bytes q + 128, a lane's share of two steps in 16 bytes: [low or high][steps 0-1 or 2-3][lane].
template <bool kOffset, int kSub>
struct Q8Format {
  using S = Scales<kOffset, kSub>;
  using Words = typename S::Words;
  using Source = PackedSource<Q8Format>;
  static constexpr Half kHalf = Half::kF16;
  static constexpr bool kOddRows = false, kScaleAfter = !kOffset && kSub == 32;
  static constexpr int kAhead = 1, kFarAhead = 2;
  static constexpr int kDataBytes = 2048, kGroupBytes = kDataBytes + S::kBytes;
  static constexpr uint32_t kMinusBase = 0xe480e480u, kMinusSecond = kMinusBase;  // -(1024 + 128)
  struct Group { uint4 low[2], high[2]; Words low_scales, high_scales; };

  static __device__ __forceinline__ void load(const Source& from, Group& to, int group, int step) {
    if (step % 2 == 0) return;
    const bool wanted = group < from.end;
    const int at = group * kGroupBytes;
    load_packed(to.low[step / 2], from.data + at + step / 2 * 512, wanted);
    load_packed(to.high[step / 2], from.data + at + step / 2 * 512 + 1024, wanted);
    if (step != 3) return;
    load_packed(to.low_scales, from.scales + at, wanted);
    load_packed(to.high_scales, from.scales + at + S::kHigh, wanted);
  }
  static __device__ __forceinline__ void read(uint32_t from, int lane, uint32_t half, Group& to) {  // see Q4Format
    const uint32_t data = from + uint32_t(lane) * 16 + half * 512;
    read_shared(to.low[0], data);
    read_shared(to.high[0], data + 1024);
    S::read(from + kDataBytes, lane, half, to.low_scales, to.high_scales);
  }

  static __device__ __forceinline__ void expand(uint32_t word, uint32_t* a) {  // 1024 + 128 + q
    a[0] = __byte_perm(word, 0x64646464u, 0x4140);
    a[2] = __byte_perm(word, 0x64646464u, 0x4342);
  }
  static __device__ __forceinline__ void integers(const Group& group, int step, uint32_t (&a)[8]) {
    const uint4 low = group.low[step / 2], high = group.high[step / 2];
    expand(step % 2 ? low.z : low.x, a);
    expand(step % 2 ? low.w : low.y, a + 4);
    expand(step % 2 ? high.z : high.x, a + 1);
    expand(step % 2 ? high.w : high.y, a + 5);
  }
  static __device__ __forceinline__ void operands(const Group& group, int step, uint32_t (&a)[8]) {
    integers(group, step, a);
    const __half2 base = half2_of(0x64806480u);
    __half2 scale[2], offset[2];
    S::of_step(group.low_scales, step, scale[0], offset[0]);
    S::of_step(group.high_scales, step, scale[1], offset[1]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const __half2 q = __hsub2(half2_of(a[i]), base);
      a[i] = bits_of(kOffset ? __hfma2(q, scale[i % 2], offset[i % 2]) : __hmul2(q, scale[i % 2]));
    }
  }
};

// Weights as operands, and in f32 what they are scaled by afterwards.
template <class Format>
struct StepOperands {
  uint32_t a[8];
  float scale[2];
  __device__ __forceinline__ StepOperands(const typename Format::Group& weights, int step) {
    if constexpr (Format::kScaleAfter) {
      Format::integers(weights, step, a);
      scale[0] = Format::S::of_step(weights.low_scales, step);
      scale[1] = Format::S::of_step(weights.high_scales, step);
    } else {
      Format::operands(weights, step, a);
    }
  }
};

// -base as an operand. Constants would be gathered anew before every product; combined with zeros that the assembler does
// not know to be any, they are values of their own, made once.
template <class Format>
struct MinusBase {
  uint32_t a[4];
  __device__ explicit MinusBase(const LinearTask& task) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      a[i] = (i < 2 ? Format::kMinusBase : Format::kMinusSecond) | uint32_t(task.parts.parts) >> (16 + i);
  }
};

struct NoBase {
  __device__ explicit NoBase(const LinearTask&) {}
};
template <class Format>
using BaseOf = std::conditional_t<Format::kScaleAfter, MinusBase<Format>, NoBase>;

// THE ORDER of a step with quantised weights: a chain of two products; if the scale comes after, of four, the first two
// with -base, which all tiles share.
template <class Format>
__device__ __forceinline__ void begin_step(float (&start)[4], const MinusBase<Format>& base, const uint4& b) {
  const float zero[4] = {};
  multiply_from(start, zero, base.a, b.x, b.y);
  multiply<Half::kF16>(start, base.a, b.z, b.w);
}
template <class Format>
__device__ __forceinline__ void multiply_step(float (&sum)[4], const StepOperands<Format>& weights, const uint4& b,
                                              const float (&start)[4]) {
  if constexpr (Format::kScaleAfter) {
    float part[4];
    multiply_from(part, start, weights.a, b.x, b.y);
    multiply<Half::kF16>(part, weights.a + 4, b.z, b.w);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum[j] = __fmaf_rn(part[j], weights.scale[j >> 1], sum[j]);
  } else {
    multiply<Half::kF16>(sum, weights.a, b.x, b.y);
    multiply<Half::kF16>(sum, weights.a + 4, b.z, b.w);
  }
}

// The end of THE ORDER: a finished sum meets bias and what was there.
__device__ __forceinline__ void store_result(const LinearTask& task, int row, int out, float sum) {
  float* to = task.result + size_t(row) * size_t(task.out_stride) + out;
  if (task.bias) sum = __fadd_rn(sum, task.bias[out]);
  if (task.accumulate) sum = __fadd_rn(sum, *to);
  *to = sum;
}

}  // namespace sx::cuda
