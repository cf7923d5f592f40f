// Repacking at load, and the partition of a linear layer's outputs among threads. Everything that touches weights at
// run time is in the kernel files.
#include "backend/cpu/linear/linear.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>

#include "backend/cpu/linear/table_groups.h"
#include "base/error.h"
#include "tensor/blocks.h"
#include "tensor/half.h"

namespace sx::cpu {
namespace {

constexpr size_t kLine = 64;
constexpr int kPieces = 4;  // per thread, so that a preempted thread delays the others by one piece only
constexpr size_t kPieceBytes = size_t(512)
                               << 10;  // of weights; a kernel needs some thousand cycles until its loads flow
// Activations that every thread quantises for itself rather than wait for the others: about 0.3 ns a value, and handing
// a job to 16 threads takes 2 to 3 us.
constexpr size_t kAloneValues = 6144, kAloneBytes = size_t(32) << 10;
// Groups of table weights that are expanded at once: as many as kernels read together for one row, or, for many rows,
// so many that the activations are not read from beyond L2 for each.
constexpr int kStreams = 2, kExpandedGroups = 8, kFewRows = 8;
size_t align_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Rounding to f16 keeps 11 bits of a normal number; subnormal results (below 2^-14) and overflow do not.
bool survives_f16(float x) {
  if (x == 0) return true;
  const float y = f16_to_float(float_to_f16(x));
  return std::isfinite(y) && std::fabs(y - x) <= std::fabs(x) * 0x1p-11f;
}

// Whether offset + 8 scale, the offset of nibbles that count from 8, does so relative to the larger of it and scale.
bool survives_centred(float scale, float offset) {
  const float x = offset + 8 * scale, y = f16_to_float(float_to_f16(x));
  return std::isfinite(y) && std::fabs(y - x) <= std::max(std::fabs(x), std::fabs(scale)) * 0x1p-11f;
}

// Half of the range of quants that count from 0, for types whose scales may be shifted; -1: others.
int centre_of(DType type) {
  switch (type) {
    case DType::kQ3_K:
    case DType::kQ6_K: return 0;
    case DType::kQ4_K: return 8;
    case DType::kQ5_1:
    case DType::kQ5_K: return 16;
    default: return -1;
  }
}

// The least and the largest size of what f16 has to hold, for types with a centre_of().
struct Range {
  float least = std::numeric_limits<float>::infinity(), most = 0;

  void add(float scale, float offset, int centre) {
    const float size = scale != 0 ? std::fabs(scale) : std::fabs(offset);  // offsets need the scale's precision only
    if (size != 0) least = std::min(least, size);
    most =
        std::max({most, std::fabs(scale), std::fabs(offset), std::fabs(offset + static_cast<float>(centre) * scale)});
  }
  void add(const Range& other) { least = std::min(least, other.least), most = std::max(most, other.most); }
};

// The power of two that brings the largest to 2^14..2^15; the least must stay a normal number, also divided by 8.
void choose_shift(const Range& range, LinearShape& shape) {
  if (range.most == 0) {
    shape.f16_shifted = true;
    return;
  }
  if (!std::isfinite(range.most)) return;
  shape.shift = std::clamp(14 - std::ilogb(range.most), -100, 100);
  shape.f16_shifted = std::ldexp(range.least, shape.shift) >= 0x1p-11f && std::ldexp(range.most, shape.shift) < 0x1p15f;
}

// What a layout may depend on; reads all scales of the types whose scales may not fit.
LinearShape shape_of(const Tensor& part, ThreadPool& pool) {
  const int in = static_cast<int>(part.columns());
  LinearShape shape = {.type = part.type, .in = in, .f16_scales = true, .f16_centred = true};
  const bool wide = dtype_is_quantised(part.type) && (dtype_info(part.type).block == 256 || part.type == DType::kMXFP4);
  const bool centred = part.type == DType::kQ4_1 || part.type == DType::kQ4_K;
  const int centre = centre_of(part.type);
  if (!wide && !centred && centre < 0) return shape;  // the file's own f16; Q4_0's offset is never stored
  std::atomic<bool> f16{true}, centred_f16{true};
  std::vector<Range> ranges(static_cast<size_t>(pool.size()));
  pool.run([&](int thread) {
    const size_t subs = static_cast<size_t>(in / affine_traits(part.type).sub);
    std::vector<int8_t> q(static_cast<size_t>(in));
    std::vector<float> scale(subs), offset(subs);
    Range range;
    for (int64_t r = thread; r < part.rows(); r += pool.size()) {
      if (part.type == DType::kQ4_1) {  // without its quants
        const auto* blocks = reinterpret_cast<const BlockQ4_1*>(part.row(r));
        for (size_t i = 0; i < subs; ++i) scale[i] = f16_to_float(blocks[i].d), offset[i] = f16_to_float(blocks[i].m);
      } else {
        unpack_affine(part.type, part.row(r), in, q.data(), scale.data(), offset.data());
      }
      bool good = true, good_centred = true;
      for (size_t i = 0; i < subs; ++i) {
        good &= !wide || (survives_f16(scale[i]) && survives_f16(offset[i]));
        good_centred &= !centred || survives_centred(scale[i], offset[i]);
        if (centre >= 0) range.add(scale[i], offset[i], centre);
      }
      if (!good) f16.store(false, std::memory_order_relaxed);
      if (!good_centred) centred_f16.store(false, std::memory_order_relaxed);
    }
    ranges[static_cast<size_t>(thread)] = range;
  });
  shape.f16_scales = f16.load();
  shape.f16_centred = centred_f16.load();
  Range all;
  for (const Range& range : ranges) all.add(range);
  if (centre >= 0) choose_shift(all, shape);
  return shape;
}

// A group's canonical form, reused from group to group by one thread.
class GroupReader {
 public:
  GroupReader(const Tensor& part, const LinearLayout& layout) : part_(part), layout_(layout) {
    const size_t group = static_cast<size_t>(layout.group);
    if (layout.quantised) {
      sub_ = affine_traits(part.type).sub;
      padded_ = static_cast<size_t>(layout.blocks) * kLinearBlock;
      q_.resize(group * padded_);
      scale_.resize(group * padded_ / static_cast<size_t>(sub_));
      offset_.resize(scale_.size());
    } else {
      values_.resize(group * part.row_bytes());
    }
  }

  LinearSource read(int group) {
    const int64_t first = static_cast<int64_t>(group) * layout_.group;
    const int64_t count = std::min<int64_t>(layout_.group, part_.rows() - first);
    if (!layout_.quantised) {
      std::fill(values_.begin(), values_.end(), std::byte{0});
      std::memcpy(values_.data(), part_.row(first), static_cast<size_t>(count) * part_.row_bytes());
      return {.sub = 0, .q = nullptr, .scale = nullptr, .offset = nullptr, .values = values_.data()};
    }
    std::fill(q_.begin(), q_.end(), int8_t{0});
    std::fill(scale_.begin(), scale_.end(), 0.0f);
    std::fill(offset_.begin(), offset_.end(), 0.0f);
    const size_t scales = padded_ / static_cast<size_t>(sub_);
    for (int64_t i = 0; i < count; ++i) {
      const size_t o = static_cast<size_t>(i);
      unpack_affine(part_.type, part_.row(first + i), part_.columns(), &q_[o * padded_], &scale_[o * scales],
                    &offset_[o * scales]);
    }
    return {.sub = sub_, .q = q_.data(), .scale = scale_.data(), .offset = offset_.data(), .values = nullptr};
  }

 private:
  const Tensor& part_;
  const LinearLayout& layout_;
  int sub_ = 32;
  size_t padded_ = 0;
  std::vector<int8_t> q_;
  std::vector<float> scale_, offset_;
  std::vector<std::byte> values_;
};

bool is_weight_type(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16 || dtype_is_quantised(type);
}

int pieces_of(size_t bytes, int threads) {
  return threads == 1
             ? 1
             : static_cast<int>(std::clamp<size_t>(bytes / kPieceBytes, size_t(threads), size_t(threads) * kPieces));
}

// The first group of `part` in the piece of the outputs that begins at `cost` (bytes from the matrix' start).
int group_at(const PackedMatrix::Part& part, size_t cost) {
  if (cost <= part.at) return 0;
  const size_t group = (cost - part.at + part.group_bytes / 2) / part.group_bytes;
  return static_cast<int>(std::min<size_t>(group, static_cast<size_t>(part.groups)));
}

}  // namespace

const LinearKernels& linear_kernels(Isa isa) {
  const LinearKernels* kernels = nullptr;
  switch (isa) {
    case Isa::kGeneric: kernels = linear_kernels_generic(); break;
    case Isa::kNeonDot: kernels = linear_kernels_neon_dot(); break;
    case Isa::kNeonI8mm: kernels = linear_kernels_neon_i8mm(); break;
    case Isa::kAvx2: kernels = linear_kernels_avx2(); break;
    case Isa::kAvx512: kernels = linear_kernels_avx512(); break;
    case Isa::kVnni: kernels = linear_kernels_vnni(); break;
    case Isa::kAmx: kernels = linear_kernels_amx(); break;
  }
  if (!kernels) fail("linear layers: this program has no kernels for instruction set '{}'", isa_name(isa));
  return *kernels;
}

std::unique_ptr<PackedMatrix> pack_matrix(std::span<const Tensor> parts, Isa isa, ThreadPool& pool) {
  SX_ASSERT(!parts.empty());
  auto matrix = std::make_unique<PackedMatrix>();
  matrix->kernels_ = &linear_kernels(isa);
  matrix->in_ = static_cast<int>(parts[0].columns());
  size_t at = 0;
  for (const Tensor& tensor : parts) {
    SX_ASSERT(tensor.columns() == matrix->in_ && tensor.rows() >= 1);
    if (!is_weight_type(tensor.type))
      fail("a weight matrix has type {}, which linear layers cannot use", dtype_name(tensor.type));
    PackedMatrix::Part part;
    part.layout = matrix->kernels_->layout(shape_of(tensor, pool));
    SX_ASSERT(part.layout.group_bytes % 16 == 0 && part.layout.group <= kMaxLinearGroup);
    part.first = matrix->out_;
    part.outputs = static_cast<int>(tensor.rows());
    part.groups = (part.outputs + part.layout.group - 1) / part.layout.group;
    part.at = align_up(at, kLine);
    part.table = part.layout.quantised ? affine_traits(tensor.type).table : nullptr;
    part.group_bytes = part.table ? table_group_bytes(part.layout) : part.layout.group_bytes;
    at = part.at + static_cast<size_t>(part.groups) * part.group_bytes;
    matrix->out_ += part.outputs;
    if (part.layout.quantised) matrix->act_blocks_ |= part.layout.act_block;
    matrix->parts_.push_back(part);
  }
  matrix->bytes_ = at;
  matrix->pages_ = Pages(at + kLine, "weights");
  spread(matrix->pages_);
  for (size_t i = 0; i < parts.size(); ++i) {
    const PackedMatrix::Part& part = matrix->parts_[i];
    std::vector<std::exception_ptr> errors(static_cast<size_t>(pool.size()));  // a pool's body must not throw
    pool.run([&](int thread) {
      try {
        GroupReader reader(parts[i], part.layout);
        std::vector<std::byte> bytes(part.table ? part.layout.group_bytes : 0);
        for (int g = thread; g < part.groups; g += pool.size()) {
          std::byte* to = matrix->pages_.data() + part.at + static_cast<size_t>(g) * part.group_bytes;
          matrix->kernels_->pack(part.layout, reader.read(g), part.table ? bytes.data() : to);
          if (part.table) pack_table_group(part.layout, part.table, bytes.data(), to);
        }
      } catch (...) { errors[static_cast<size_t>(thread)] = std::current_exception(); }
    });
    for (const auto& error : errors)
      if (error) std::rethrow_exception(error);
  }
  return matrix;
}

size_t linear_worker_bytes(const LinearKernels& kernels, int in) {
  const size_t group = static_cast<size_t>(align_up(static_cast<size_t>(in), kLinearBlock)) * kMaxLinearGroup;
  return align_up(kernels.panel_bytes(in), kLine) + kExpandedGroups * (group + group / kLinearBlock * sizeof(float));
}

void run_groups(const PackedMatrix& matrix, const PackedMatrix::Part& part, LinearJob job, std::byte* worker) {
  const LinearKernels& kernels = matrix.kernels();
  const LinearLayout& layout = part.layout;
  job.layout = &layout;
  job.outputs = part.outputs;
  job.panel = worker;
  job.weights = matrix.data() + part.at;
  if (!part.table) return kernels.run(job);
  std::byte* expanded = worker + align_up(kernels.panel_bytes(layout.in), kLine);
  const LinearJob all = job;
  job.weights = expanded;
  job.first = 0;
  const int at_once = all.rows <= kFewRows ? kStreams : kExpandedGroups;
  for (int g = all.first; g < all.last; g += at_once) {
    const int first = g * layout.group;
    job.last = std::min(at_once, all.last - g);
    for (int i = 0; i < job.last; ++i)
      expand_table_group(layout, part.table, all.weights + static_cast<size_t>(g + i) * part.group_bytes,
                         expanded + static_cast<size_t>(i) * layout.group_bytes);
    job.outputs = part.outputs - first;
    job.out = all.out + first;
    job.bias = all.bias ? all.bias + first : nullptr;
    kernels.run(job);
  }
}

LinearScratch::LinearScratch(Isa isa) : kernels_(&linear_kernels(isa)) {}

void LinearScratch::reserve(int max_rows, int max_in, int threads) {
  if (max_rows <= rows_ && max_in <= in_ && threads <= threads_) return;
  rows_ = std::max(rows_, max_rows);
  in_ = std::max(in_, max_in);
  threads_ = std::max(threads_, threads);
  const size_t tile = align_up(kernels_->act_bytes(in_), kLine);
  const size_t tiles = static_cast<size_t>((rows_ + kernels_->act_rows - 1) / kernels_->act_rows);
  panel_stride_ = std::max(tile, kAloneBytes);
  own_stride_ = align_up(panel_stride_ + linear_worker_bytes(*kernels_, in_), 4096);
  shared_ = Pages(tiles * tile, "quantised activations");
  owners_.assign(static_cast<size_t>(threads_), {});
  own_ = Pages(own_stride_ * static_cast<size_t>(threads_), "panels of linear layers");
}

void linear(const LinearArgs& args, const PackedMatrix& matrix, ThreadPool& pool, LinearScratch& scratch) {
  const LinearKernels& kernels = matrix.kernels();
  SX_ASSERT(&kernels == scratch.kernels_ && args.rows >= 1 && args.rows <= scratch.rows_);
  SX_ASSERT(matrix.in() <= scratch.in_ && pool.workers() <= scratch.threads_ && args.out_stride >= matrix.out());
  const int tiles = (args.rows + kernels.act_rows - 1) / kernels.act_rows;
  const size_t values = static_cast<size_t>(args.rows) * static_cast<size_t>(matrix.in());
  const bool alone =
      tiles == 1 ||
      (values <= kAloneValues && static_cast<size_t>(tiles) * kernels.act_bytes(matrix.in()) <= scratch.panel_stride_);
  const uint64_t call = ++scratch.calls_;
  if (matrix.act_blocks() && !alone) {
    const int shares = std::min(tiles, pool.size());
    pool.each(shares, [&](int i) {
      kernels.quantise(args.x, matrix.in(), args.rows, tiles * i / shares, tiles * (i + 1) / shares,
                       matrix.act_blocks(), scratch.shared_.data());
    });
  }
  const size_t total = matrix.bytes();
  const int pieces = pieces_of(total, pool.size());
  pool.each(pieces, [&](int piece, int worker) {
    std::byte* own = scratch.own_.data() + scratch.own_stride_ * static_cast<size_t>(worker);
    void* act = alone ? own : scratch.shared_.data();
    if (uint64_t& of = scratch.owners_[static_cast<size_t>(worker)].call; matrix.act_blocks() && alone && of != call) {
      kernels.quantise(args.x, matrix.in(), args.rows, 0, tiles, matrix.act_blocks(), act);
      of = call;
    }
    const size_t from = total * static_cast<size_t>(piece) / static_cast<size_t>(pieces);
    const size_t to = total * static_cast<size_t>(piece + 1) / static_cast<size_t>(pieces);
    for (const PackedMatrix::Part& part : matrix.parts()) {
      const int first = group_at(part, from), last = piece + 1 == pieces ? part.groups : group_at(part, to);
      if (first >= last) continue;
      run_groups(matrix, part,
                 {.first = first,
                  .last = last,
                  .x = args.x,
                  .act = act,
                  .rows = args.rows,
                  .out = args.out + part.first,
                  .out_stride = args.out_stride,
                  .bias = args.bias ? args.bias + part.first : nullptr,
                  .accumulate = args.accumulate},
                 own + scratch.panel_stride_);
    }
  });
}

}  // namespace sx::cpu
