// The Hopper (sm_90a) instructions that attention and GEMM use, one small function each: mbarriers, copies of boxes of
// a tensor (TMA), and matrix multiply-accumulate of a warpgroup of 4 warps (wgmma).
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/runtime/driver_call.h"

namespace sx::cuda {
using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

inline EncodeTiled encode_tiled() {  // null if the driver has none
  static const auto function = reinterpret_cast<EncodeTiled>(find_driver_call("cuTensorMapEncodeTiled"));
  return function;
}
}  // namespace sx::cuda

// wgmma and setmaxnreg exist only in code for sm_90a.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SX_HOPPER 1
#endif

#ifdef SX_HOPPER
namespace sx::cuda::hopper {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return uint32_t(__cvta_generic_to_shared(pointer));
}

// mbarriers: `count` arrivals and all announced bytes complete a phase; phases are numbered 0, 1, 0, 1, ... by their
// parity.
__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_init_done() {  // makes the initial state visible to the copy engine
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Until the phase of this parity has ended. Of a fresh barrier the phase before the first, parity 1, counts as ended.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
}

// Named barriers of `threads` threads; those that arrive do not wait. 0 is __syncthreads.
__device__ __forceinline__ void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Orders ordinary accesses before accesses of the copy engine and of wgmma.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Copies the box at (x, y, z) to shared memory; all its bytes count towards the barrier, those outside the tensor too.
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, int x, int y, int z, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, int x, int y, int z, int w,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, int x, int y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&map)) : "memory");
}

template <int registers>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

// A matrix of 16-bit elements in shared memory for wgmma, with 128-byte swizzle: lines of 128 bytes (64 elements),
// whose eight 16-byte units are exchanged by XOR with line % 8, in groups of 8 lines at multiples of 1024 bytes.
// Bits 0-13: address / 16; 16-29: leading byte offset / 16; 32-45: stride byte offset / 16 (to the next group);
// 62-63: 1, this swizzle.
//   K-major (lines run along the inner dimension): the leading offset is not used. 16 elements further along the inner
//   dimension are 32 bytes further in the line.
//   MN-major (lines run along M or N; a line is 64 columns of one inner index): the leading offset leads to the next 64
//   columns, the stride to the next 8 inner indices.
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t leading_bytes) {
  constexpr uint64_t kGroups1024Swizzle128 = uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t(leading_bytes >> 4) << 16 | kGroups1024Swizzle128;
}

// Registers written by ordinary instructions are ready for the wgmma that follow.
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most `pending` committed groups are still running.
template <int pending>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// Keeps the compiler from moving uses of registers across a wait.
template <int n>
__device__ __forceinline__ void hold(float (&x)[n]) {
#pragma unroll
  for (int i = 0; i < n; i++) asm volatile("" : "+f"(x[i])::"memory");
}

#define SX_REGISTERS_64                                                              \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define SX_REGISTERS_32                                                     \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define SX_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SX_16(d, i) SX_4(d, i), SX_4(d, i + 4), SX_4(d, i + 8), SX_4(d, i + 12)
#define SX_32(d, i) SX_16(d, i), SX_16(d, i + 16)

// d[64 x 128] = a[64 x 16] b[128 x 16]^T, plus d if add: both from shared memory, K-major.
template <bool bf16>
__device__ __forceinline__ void product_shared(float (&d)[64], uint64_t a, uint64_t b, int add) {
#define SX_PRODUCT(type)                                                               \
  asm volatile(                                                                        \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                     \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " " SX_REGISTERS_64 \
      ", %64, %65, p, 1, 1, 0, 0;\n}\n"                                                \
      : SX_32(d, 0), SX_32(d, 32)                                                      \
      : "l"(a), "l"(b), "r"(add))
  if constexpr (bf16) {
    SX_PRODUCT("bf16");
  } else {
    SX_PRODUCT("f16");
  }
#undef SX_PRODUCT
}

// d[64 x 64] = a[64 x 16] b[64 x 16]^T, plus d if add: likewise.
template <bool bf16>
__device__ __forceinline__ void product_shared(float (&d)[32], uint64_t a, uint64_t b, int add) {
#define SX_PRODUCT(type)                                                              \
  asm volatile(                                                                       \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                    \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " SX_REGISTERS_32 \
      ", %32, %33, p, 1, 1, 0, 0;\n}\n"                                               \
      : SX_32(d, 0)                                                                   \
      : "l"(a), "l"(b), "r"(add))
  if constexpr (bf16) {
    SX_PRODUCT("bf16");
  } else {
    SX_PRODUCT("f16");
  }
#undef SX_PRODUCT
}

// d[64 x n] = a[64 x 16] b[16 x n], plus d if add: a from registers, b from shared memory, MN-major (transposed). n =
// 128 and 64.
template <bool bf16>
__device__ __forceinline__ void product_registers(float (&d)[64], const uint32_t* a, uint64_t b, int add = 1) {
#define SX_PRODUCT(type)                                                               \
  asm volatile(                                                                        \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"                                     \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " " SX_REGISTERS_64 \
      ", {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"                                  \
      : SX_32(d, 0), SX_32(d, 32)                                                      \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
  if constexpr (bf16) {
    SX_PRODUCT("bf16");
  } else {
    SX_PRODUCT("f16");
  }
#undef SX_PRODUCT
}
template <bool bf16>
__device__ __forceinline__ void product_registers(float (&d)[32], const uint32_t* a, uint64_t b, int add = 1) {
#define SX_PRODUCT(type)                                                              \
  asm volatile(                                                                       \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                    \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " SX_REGISTERS_32 \
      ", {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"                                 \
      : SX_32(d, 0)                                                                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
  if constexpr (bf16) {
    SX_PRODUCT("bf16");
  } else {
    SX_PRODUCT("f16");
  }
#undef SX_PRODUCT
}
#undef SX_4
#undef SX_16
#undef SX_32
#undef SX_REGISTERS_32
#undef SX_REGISTERS_64

}  // namespace sx::cuda::hopper
#endif
