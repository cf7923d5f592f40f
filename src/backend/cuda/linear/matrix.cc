// Weight matrices on the device: floats as they are, row-major; quantised types in the order in which lanes of the
// tensor-core kernels want them (formats.cuh). Repacking runs on all cores of the host, a few megabytes at a
// time.
#include <specextend/error.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include "backend/cuda/linear/linear.h"
#include "backend/cuda/linear/kernels.h"
#include "base/cpu_count.h"
#include "tensor/blocks.h"
#include "tensor/half.h"

namespace sx::cuda {
namespace {

using Format = WeightSegment::Format;

Format format_of(DType type) {
  switch (type) {
    case DType::kF32: return Format::kF32;
    case DType::kBF16: return Format::kBF16;
    case DType::kF16: return Format::kF16;
    default: break;
  }
  if (!dtype_is_quantised(type))
    throw Error(std::string("CUDA: weights of type ") + dtype_name(type) + " are not supported");
  if (type == DType::kMXFP4) return Format::kF4;
  return affine_traits(type).bits == 4 ? Format::kQ4 : Format::kQ8;
}

struct Part {  // a tensor and where its rows go
  Tensor tensor;
  Format format;
  int first_out, out, sub;
  bool has_offset;
  bool joins(const Part& other) const {
    return format == other.format && sub == other.sub && has_offset == other.has_offset;
  }
};

void upload(void* to, const void* from, size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "upload of weights");
}

// One row, q, scale and offset by element and sub-block; rows behind the end are zeros.
struct Row {
  std::vector<int8_t> q;
  std::vector<float> scale, offset;
  Row(int in, int sub) : q(size_t(in)), scale(size_t(in / sub)), offset(size_t(in / sub)) {}
  void clear() {
    std::fill(q.begin(), q.end(), int8_t(0));
    std::fill(scale.begin(), scale.end(), 0.0f);
    std::fill(offset.begin(), offset.end(), 0.0f);
  }
};

// Bytes of a group of a tile: numbers and scales of 16 rows.
bool has_nibbles(Format format) { return format == Format::kQ4 || format == Format::kF4; }
size_t group_data_bytes(Format format) { return size_t(kTileOut * kGroup) / (has_nibbles(format) ? 2 : 1); }
size_t group_scale_bytes(int sub, bool has_offset) { return size_t(kTileOut * (kGroup / sub)) * (has_offset ? 4 : 2); }
size_t tile_bytes(Format format, int in, int sub, bool has_offset) {
  return size_t(parts_of(in).groups) * (group_data_bytes(format) + group_scale_bytes(sub, has_offset));
}

// The sign, and the number of twice the value among 0 1 2 3 4 6 8 12.
int e2m1_code(int8_t twice) {
  const int size = twice < 0 ? -twice : twice;
  return (twice < 0 ? 8 : 0) | (size <= 4 ? size : size == 6 ? 5 : size == 8 ? 6 : 7);
}

// Row r of a tile into the tile, which starts as zeros.
void pack_row(const Row& row, int r, const Part& part, int in, uint8_t* tile) {
  const size_t half = size_t(r / 8), g = size_t(r % 8), subs = size_t(32 / part.sub), width = part.has_offset ? 2 : 1;
  const size_t data_bytes = group_data_bytes(part.format),
               group_bytes = data_bytes + group_scale_bytes(part.sub, part.has_offset);
  for (int k = 0; k < in; ++k) {
    const size_t step = size_t(k % kGroup / 32), t = size_t(k % 8 / 2), e = size_t(k % 32 / 8 * 2 + k % 2),
                 lane = g * 4 + t;
    uint8_t* const data = tile + size_t(k / kGroup) * group_bytes;
    if (has_nibbles(part.format)) {  // word `step` of the lane's 16 bytes; element 2i at bit 4i, 2i + 1 at bit 16 + 4i
      const size_t byte = (half * 32 + lane) * 16 + step * 4 + (e % 2) * 2 + e / 4;
      const int code = part.format == Format::kF4 ? e2m1_code(row.q[size_t(k)]) : row.q[size_t(k)] & 15;
      data[byte] = uint8_t(data[byte] | code << (e / 2 % 2 * 4));
    } else {
      data[((half * 2 + step / 2) * 32 + lane) * 16 + (step % 2) * 8 + e] = uint8_t(row.q[size_t(k)] + 128);
    }
  }
  for (int s = 0; s < in / part.sub; ++s) {
    const size_t k = size_t(s) * size_t(part.sub), step = k % kGroup / 32, which = k % 32 / size_t(part.sub);
    const size_t at = (((half * 8 + g) * 4 + step) * subs + which) * width;
    const float scale = row.scale[size_t(s)] * (part.format == Format::kF4 ? 2 : 1);  // the table has twice the values
    const uint16_t pair[2] = {float_to_f16(scale), float_to_f16(row.offset[size_t(s)])};
    std::memcpy(tile + k / kGroup * group_bytes + data_bytes + at * 2, pair, width * 2);
  }
}

// The parts of one quantised segment, stacked, as tiles.
class Packer {
 public:
  Packer(std::span<const Part> parts, int in, int out) : parts_(parts), in_(in), out_(out) {
    tile_bytes_ = tile_bytes(parts[0].format, in, parts[0].sub, parts[0].has_offset);
  }

  void place(WeightSegment& segment, DeviceMemory& memory) const {
    const size_t tiles = size_t((out_ + kTileOut - 1) / kTileOut);
    auto* data = static_cast<std::byte*>(memory.take(tiles * tile_bytes_, "weights"));
    segment.data = data;
    if (memory.counts_only()) return;
    const size_t batch = std::max<size_t>(1, (size_t(64) << 20) / tile_bytes_);
    std::vector<uint8_t> host;
    for (size_t first = 0; first < tiles; first += batch) {
      const size_t count = std::min(batch, tiles - first);
      host.assign(count * tile_bytes_, 0);
      pack(first, count, host.data());
      upload(data + first * tile_bytes_, host.data(), host.size());
    }
  }

 private:
  void pack(size_t first, size_t count, uint8_t* tiles) const {
    std::atomic<size_t> next{0};
    const auto work = [&] {
      Row row(in_, parts_[0].sub);
      for (size_t i; (i = next.fetch_add(1)) < count;) {
        for (int r = 0; r < kTileOut; ++r) {
          unpack(int(first + i) * kTileOut + r, row);
          pack_row(row, r, parts_[0], in_, tiles + i * tile_bytes_);
        }
      }
    };
    const size_t wanted = std::min<size_t>(size_t(cpu_count().threads()), (count + 7) / 8);
    std::vector<std::thread> helpers;
    for (size_t i = 1; i < wanted; ++i) helpers.emplace_back(work);
    work();
    for (std::thread& helper : helpers) helper.join();
  }

  void unpack(int out, Row& row) const {
    if (out >= out_) return row.clear();
    size_t p = 0;
    int within = out;
    while (within >= parts_[p].out) within -= parts_[p++].out;
    const Tensor& tensor = parts_[p].tensor;
    unpack_affine(tensor.type, tensor.row(within), in_, row.q.data(), row.scale.data(), row.offset.data());
  }

  std::span<const Part> parts_;
  int in_, out_;
  size_t tile_bytes_ = 0;
};

// Float parts, stacked. Elements that are wider on the device than in the tensor (BF16 kept as F32) are widened.
void place_floats(WeightSegment& segment, std::span<const Part> parts, int in, DeviceMemory& memory) {
  const size_t row_bytes = size_t(in) * (segment.format == Format::kF32 ? 4 : 2);
  auto* to = static_cast<std::byte*>(memory.take(size_t(segment.out) * row_bytes, "weights"));
  segment.data = to;
  if (memory.counts_only()) return;
  for (const Part& part : parts) {
    const size_t bytes = size_t(part.out) * row_bytes;
    if (segment.format == Format::kF32 && part.tensor.type != DType::kF32) {
      std::vector<float> wide(size_t(part.out) * size_t(in));
      dequantise(part.tensor.type, part.tensor.data, int64_t(wide.size()), wide.data());
      upload(to, wide.data(), bytes);
    } else {
      upload(to, part.tensor.data, bytes);
    }
    to += bytes;
  }
}

}  // namespace

CudaMatrix::CudaMatrix(std::span<const Tensor> tensors, DeviceMemory& memory, std::span<const RowsOf> of) {
  if (tensors.empty()) throw Error("CUDA: a matrix without parts");
  in_ = int(tensors[0].columns());
  std::vector<Part> parts;
  bool bf16 = false, f16 = false;
  for (const Tensor& tensor : tensors) {
    if (tensor.columns() != in_ || in_ < 1 || tensor.rows() < 1) {
      throw Error("CUDA: parts of a matrix with " + std::to_string(tensor.columns()) + " and " + std::to_string(in_) +
                  " inputs");
    }
    Part part{tensor, format_of(tensor.type), out_, int(tensor.rows()), 0, false};
    if (has_nibbles(part.format) || part.format == Format::kQ8) {
      const AffineTraits traits = affine_traits(tensor.type);
      part.sub = traits.sub;
      part.has_offset = traits.has_offset && tensor.type != DType::kQ4_0;  // its offset, -8 scales, kernels know
    }
    bf16 |= part.format == Format::kBF16;
    f16 |= part.format != Format::kBF16 && part.format != Format::kF32;
    out_ += part.out;
    parts.push_back(part);
  }
  // x comes rounded to one 16-bit type. BF16 weights beside parts that want F16 are kept exact as F32.
  half_ = bf16 && !f16 ? Half::kBF16 : Half::kF16;
  if (bf16 && f16) {
    for (Part& part : parts) {
      if (part.format == Format::kBF16) part.format = Format::kF32;
    }
  }
  for (size_t first = 0, end; first < parts.size(); first = end) {
    WeightSegment segment;
    segment.format = parts[first].format;
    segment.first_out = parts[first].first_out;
    segment.sub = parts[first].sub;
    segment.has_offset = parts[first].has_offset;
    for (end = first; end < parts.size() && parts[end].joins(parts[first]); ++end) segment.out += parts[end].out;
    const std::span<const Part> joined(parts.data() + first, end - first);
    Whole whole{segment, {}};
    whole.segment.first_out = whole_out_, whole.segment.out = 0;
    for (int here = 0; const Part& part : joined) {
      const RowsOf rows = of.empty() ? RowsOf{0, part.out} : of[size_t(&part - parts.data())];
      const Run run{here, whole.segment.out + rows.first, part.out};
      Run* const last = whole.runs.empty() ? nullptr : &whole.runs.back();
      if (last && last->whole_first + last->count == run.whole_first) last->count += run.count;
      else whole.runs.push_back(run);
      whole.segment.out += rows.whole, here += part.out;
    }
    whole_out_ += whole.segment.out;
    wholes_.push_back(std::move(whole));
    if (segment.quantised()) {
      Packer(joined, in_, segment.out).place(segment, memory);
      const size_t tiles = size_t((segment.out + kTileOut - 1) / kTileOut);
      bytes_ += tiles * tile_bytes(segment.format, in_, segment.sub, segment.has_offset);
    } else {
      place_floats(segment, joined, in_, memory);
      bytes_ += size_t(segment.out) * size_t(in_) * (segment.format == Format::kF32 ? 4 : 2);
    }
    wants_f32_ |= segment.format == Format::kF32;
    wants_half_ |= segment.format != Format::kF32;
    segments_.push_back(segment);
  }
}

}  // namespace sx::cuda
