// Cells of 4 bits: a position of a block is a record, the head vector as blocks of 32 elements of GGUF's Q4_0 or Q4_1
// (a head that is no multiple of 32 is filled up with zeros). No kernel reads records: a block of 64 is unpacked to the
// tile that the bf16 kernels of the instruction set read. The value of an element is scale * code + offset rounded to
// bf16, whoever reads it. Where a head is filled up, the elements behind its end are zeros: queries and outputs have no
// such elements.
#pragma once
#include "backend/cpu/kv/layout.h"

namespace sx::cpu {

// Bytes of a record of `dim` elements.
size_t record_bytes(DType type, int dim);
// x: [dim]. Values are clamped to what a scale of 16 bits can hold.
void write_record(const KvLayout& layout, std::byte* record, const float* x);
void read_record(const KvLayout& layout, const std::byte* record, float* x);

// The type of what kernels read: bf16 where the store has records, else its own.
constexpr DType tile_type(DType type) { return type == DType::kQ4_0 || type == DType::kQ4_1 ? DType::kBF16 : type; }
// The layout of unpacked blocks of a side: that of bf16; `layout` itself if it has no records. `other`: the other side.
KvLayout tile_layout(const KvLayout& layout, const KvLayout& other, Isa isa);
// All 64 positions of a K or V block with records, as a block of `tile`.
struct UnpackKernels {
  void (*keys)(const KvLayout& layout, const std::byte* block, const KvLayout& tile, std::byte* out);
  void (*values)(const KvLayout& layout, const std::byte* block, const KvLayout& tile, std::byte* out);
};
const UnpackKernels& unpack_kernels(Isa isa);  // the fastest of a set; all of them write the same bits
// Those of sets without vectors of their own for it.
void unpack_keys(const KvLayout& layout, const std::byte* block, const KvLayout& tile, std::byte* out);
void unpack_values(const KvLayout& layout, const std::byte* block, const KvLayout& tile, std::byte* out);

}  // namespace sx::cpu
