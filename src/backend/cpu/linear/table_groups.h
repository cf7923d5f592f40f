// Weights whose values come from a table of 16 (MXFP4, IQ4_NL, IQ4_XS) lie in memory as 4-bit codes. The kernels know
// them as a format of bytes: before a group is used, its codes are looked up and written, with its scales, to a buffer
// of the thread that stays in the L1 or L2 cache. Whatever a set of kernels does with bytes, it does with tables.
#pragma once
#include "backend/cpu/isa.h"
#include "backend/cpu/linear/linear_kernels.h"

namespace sx::cpu {

// A group as it is stored: per block of 32 inner values the scales as the kernels want them, then half a byte per
// value: of each 32 bytes of the kernels' order the first 16 in the low nibbles.
size_t table_group_bytes(const LinearLayout& layout);
// `group`: what LinearKernels::pack wrote.
void pack_table_group(const LinearLayout& layout, const int8_t* table, const std::byte* group, std::byte* packed);
// The inverse; both 16-byte aligned.
void expand_table_group(const LinearLayout& layout, const int8_t* table, const std::byte* packed, std::byte* group);

}  // namespace sx::cpu
