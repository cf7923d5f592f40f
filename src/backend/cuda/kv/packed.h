// Packed stores: K and V of 4 bits, or of two types (views.h). Attention has no kernels for them. Before each call a
// kernel widens the cells of the layer that the call reads to a store of one layer in 16 bits (CudaKv::tile()), and the
// kernels of that type do the rest, so that a row has the bits that it would have if the store held what the tile
// holds. This saves memory, not time: 0.28 (Q4_0), 0.31 or 0.53 of the bytes of 16 bits are read, all of them are
// written and read again.
#pragma once
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/kv/kv.h"

namespace sx::cuda {

// The call on the tile, behind the kernels that fill it. Where the store is not packed, nothing is launched.
AttendCall on_tile(AttendCall call, const CudaKv& kv, cudaStream_t stream);
PromptAttendCall on_tile(PromptAttendCall call, const CudaKv& kv, cudaStream_t stream);

// kv_read and kv_write.
size_t packed_store_cell_bytes(const KvView& kv);  // a multiple of 4
void copy_packed_cells(const CellsCall& call, bool write, cudaStream_t stream);

}  // namespace sx::cuda
