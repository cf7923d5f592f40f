#include "backend/cpu/rows.h"

#include <cmath>

#include "backend/cpu/rows_kernels.h"
#include "base/error.h"
#include "tensor/blocks.h"

namespace sx::cpu {
namespace {

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

}  // namespace

namespace generic {
extern const RowLoops kRowLoops;
}
namespace neon {
extern const RowLoops kRowLoops;
}
namespace avx2 {
extern const RowLoops kRowLoops;
}
namespace avx512 {
extern const RowLoops kRowLoops;
}

const RowLoops& row_loops(Isa isa) {
#if defined(SX_HAS_GENERIC)
  if (isa == Isa::kGeneric) return generic::kRowLoops;
#endif
#if defined(SX_HAS_NEON_DOT) || defined(SX_HAS_NEON_I8MM)
  if (isa == Isa::kNeonI8mm || isa == Isa::kNeonDot) return neon::kRowLoops;
#endif
#if defined(SX_HAS_AVX2)
  if (isa == Isa::kAvx2) return avx2::kRowLoops;
#endif
#if defined(SX_HAS_AVX512)
  if (isa == Isa::kAvx512 || isa == Isa::kVnni || isa == Isa::kAmx) return avx512::kRowLoops;
#endif
  fail("this program has no loops over rows for instruction set '{}'", isa_name(isa));
}

void embed(const EmbedArgs& args, ThreadPool& pool) {
  const int width = static_cast<int>(args.table.columns());
  share_rows(pool, args.rows, width, [&](int r) {
    dequantise(args.table.type, args.table.row(args.tokens[r]), width, args.out + size_t(r) * size_t(width));
  });
}

void norm(const NormArgs& args, Isa isa, ThreadPool& pool) {
  const auto stride = size_t(args.stride > 0 ? args.stride : args.width);
  const RowLoops& loops = row_loops(isa);
  share_rows(pool, args.rows, args.width,
             [&](int r) { loops.norm(args, args.x + size_t(r) * stride, args.out + size_t(r) * stride); });
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

void glu(const GluArgs& args, Isa isa, ThreadPool& pool) {
  const size_t width = size_t(args.width), stride = args.gated ? 2 * width : width;
  const RowLoops& loops = row_loops(isa);
  share_rows(pool, args.rows, args.width * 4, [&](int r) {
    const float* gate = args.gate_up + size_t(r) * stride;
    loops.activate(args.activation, gate, args.gated ? gate + width : nullptr, args.out + size_t(r) * width,
                   args.width);
  });
}

void soft_cap(const SoftCapArgs& args, Isa isa, ThreadPool& pool) {
  const RowLoops& loops = row_loops(isa);
  share_rows(pool, args.rows, args.width * 4,
             [&](int r) { loops.cap(args.x + size_t(r) * size_t(args.width), args.width, args.cap); });
}

}  // namespace sx::cpu
