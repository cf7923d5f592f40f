// The contract between linear layers (linear.cc) and their kernels: one table of functions per instruction set, each in
// its own translation unit, compiled with its own flags, everything inside its own namespace. A kernel file must not
// instantiate standard library templates or shared inline functions: the linker would keep one copy for all sets.
//
// linear.cc unpacks the file's blocks into a canonical form, cuts the outputs into groups, shares groups out to threads
// and calls run(); how a group lies in memory and which tile is used for how many rows is up to the kernels. They are
// batch-invariant: an output element's bits depend on its row of x and its weights only, so every row count must go
// through the same floating-point operations in the same order. For quantised weights all sets use (but for layouts
// with an act_block of 64, see linear_i8mm_super.inl and linear_act_tiles.inl)
//   acc = 0; for each sub-block in order: acc = fma(float(integer dot), scale * dx, acc); acc = fma(offset, sx, acc)
// (the second only for types with offsets; generic: mul then add), where x is quantised per 32: x ~ dx * q, sx = dx *
// (sum of the sub-block's q). For float weights acc = fma(w[k], x[k], acc), k ascending. Then out = acc + bias, then
// old + that.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace sx::cpu {

inline constexpr int kLinearBlock = 32;     // quantised rows are padded to a multiple of it
inline constexpr int kMaxLinearGroup = 16;  // most outputs in a group

// How one part (rows of one type) of a matrix lies in memory: groups of `group` outputs, each `group_bytes` long.
struct LinearLayout {
  DType type = DType::kF32;
  int format = 0;          // the kernels' own number
  bool quantised = false;  // reads int8 activations; else f32
  int group = 8;           // outputs per group
  int act_block = 32;      // quantised: inner values that share an activation scale, 32 or 64
  int in = 0;              // inner values
  int blocks = 0;          // quantised: ceil(in / 32)
  size_t group_bytes = 0;  // a multiple of 16
  int block_bytes = 0;     // of a group: 32 inner values. Formats of bytes: [group][32] quants behind `quants_at` bytes
  int quants_at = 0;       // of scales, which is what table_groups.h needs to know
  int shift = 0;           // scales and offsets are stored times 2^shift (and whatever else `unit` takes back)
  float unit = 1;          // a power of two that sums are multiplied with before the bias is added
};

// What a layout may depend on.
struct LinearShape {
  DType type;
  int in;
  bool f16_scales;   // every scale and offset survives rounding to f16 with a relative error of 2^-11 at most
  bool f16_centred;  // 4-bit types with offsets: offset + 8 scale does so, too, relative to the larger of it and scale
  // Types of 3 to 6 bits whose scales may be too small or too large for f16: scale, offset and centred offset (offset
  // + half of the range of quants * scale), times 2^shift, stay within f16's range. Offsets have the scale's precision.
  int shift = 0;
  bool f16_shifted = false;
};

// One group in canonical form; outputs beyond the matrix and inner values beyond `in` are zero (value, scale and
// offset).
struct LinearSource {
  int sub;          // quantised: inner values per scale, 32 or 16
  const int8_t* q;  // [group][blocks * 32]; 4-bit types (affine_traits().bits == 4): 0..15, Q4_0's offset is -8 scale
  const float* scale;   // [group][blocks * 32 / sub]
  const float* offset;  // [group][blocks * 32 / sub]
  const void* values;   // float types: [group][in] elements of the file's type
};

// Groups [first, last) of a part times all rows.
struct LinearJob {
  const LinearLayout* layout = nullptr;
  const std::byte* weights = nullptr;  // group 0 of the part
  int first, last;
  int outputs = 0;  // of the part; the last group may be partly beyond
  const float* x;   // [rows, layout.in]
  const void* act;  // what quantise() wrote; null for float parts
  int rows;
  float* out;  // [rows, out_stride], column 0 of the part
  int out_stride;
  const float* bias;  // [outputs] or null
  bool accumulate;
  std::byte* panel = nullptr;  // panel_bytes() of this thread's own, 64-byte aligned
};

struct LinearKernels {
  const char* name;
  LinearLayout (*layout)(const LinearShape&);
  // Writes one group. Load time: clarity before speed.
  void (*pack)(const LinearLayout&, const LinearSource&, std::byte* group);
  // Activations are quantised in tiles of `act_rows` rows (all but the last tile full), tiles [first, last) of a call;
  // `act` has act_bytes(in) for every tile of the rows. act_blocks: the act_block of all layouts that will read them,
  // or'ed.
  int act_rows;
  size_t (*act_bytes)(int in);
  void (*quantise)(const float* x, int in, int rows, int first_tile, int last_tile, int act_blocks, void* act);
  size_t (*panel_bytes)(int in);  // per-thread scratch of run()
  void (*run)(const LinearJob&);
};

// 2^exponent, for exponents of normal numbers.
constexpr float power_of_two(int exponent) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(exponent + 127) << 23);
}

// Null where the set does not exist on this architecture. Whether this machine has it is isa.h's business.
const LinearKernels* linear_kernels_generic();
const LinearKernels* linear_kernels_neon_dot();
const LinearKernels* linear_kernels_neon_i8mm();
const LinearKernels* linear_kernels_avx2();
const LinearKernels* linear_kernels_avx512();
const LinearKernels* linear_kernels_vnni();
const LinearKernels* linear_kernels_amx();

}  // namespace sx::cpu
