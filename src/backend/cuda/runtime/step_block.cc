#include "backend/cuda/runtime/step_block.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace sx::cuda {
namespace {

constexpr size_t kRowBytes =
    sizeof(Token) + 2 * sizeof(int32_t) + sizeof(RowInfo) + sizeof(RowTile) + kAncestorWords * sizeof(uint64_t);
constexpr size_t kAlign = 64;

size_t aligned(size_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

int tiles_of(std::span<const SeqRows> seqs) {
  int tiles = 0;
  for (const SeqRows& s : seqs) tiles += (s.rows + kTileRows - 1) / kTileRows;
  return tiles;
}

// The bits of a row's ancestors and itself over the nodes of the tail; returns its depth.
int fill_ancestors(const SeqRows& seq, int row, uint64_t* bits) {
  std::fill_n(bits, kAncestorWords, 0);
  const int node = seq.uncommitted + row;
  if (!seq.ancestors) {
    SX_ASSERT(node < kAncestorWords * 64);
    for (int j = 0; j <= node; ++j) bits[j / 64] |= uint64_t(1) << (j % 64);
    return node;
  }
  int depth = -1;
  for (int w = 0; w < std::min(seq.words, kAncestorWords); ++w) {
    bits[w] = seq.ancestors[ptrdiff_t(row) * seq.words + w];
    depth += std::popcount(bits[w]);
  }
  return depth;
}

}  // namespace

Staging::~Staging() {
  for (Buffer& b : buffers_) {
    if (b.sent) cudaEventDestroy(b.sent);
    if (b.data) cudaFreeHost(b.data);
  }
}

void* Staging::begin(size_t bytes) {
  next_ = (next_ + 1) % buffers_.size();
  Buffer& b = buffers_[next_];
  if (b.sent) check(cudaEventSynchronize(b.sent), "copy to the device");
  else check(cudaEventCreateWithFlags(&b.sent, cudaEventDisableTiming), "event");
  if (b.size < bytes) {
    if (b.data) cudaFreeHost(b.data);
    b.data = nullptr;
    b.size = std::bit_ceil(std::max<size_t>(bytes, 1 << 16));
    check(cudaMallocHost(&b.data, b.size), "pinned memory");
  }
  return b.data;
}

void Staging::send(void* to, size_t bytes) {
  check(cudaMemcpyAsync(to, buffers_[next_].data, bytes, cudaMemcpyHostToDevice, stream_), "copy to the device");
  check(cudaEventRecord(buffers_[next_].sent, stream_), "event");
}

int padded_rows(int rows) {
  for (int size : {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128})
    if (rows <= size) return size;
  return (rows + 63) / 64 * 64;
}

int padded_history(int history) {
  constexpr int kLeast = 512;
  if (history <= kLeast) return kLeast;
  const int power = int(std::bit_floor(unsigned(history - 1))), step = std::max(kLeast, power / 4);
  return (history + step - 1) / step * step;
}

bool StepBlock::reserve(int rows, DeviceMemory& memory) {
  if (rows <= capacity_) return false;
  capacity_ = padded_rows(rows);
  device_ = static_cast<char*>(memory.take(size_t(capacity_) * kRowBytes + 8 * kAlign, "integers of a step"));
  return true;
}

StepShape StepBlock::shape_of(const StepInputs& inputs, bool pad) {
  StepShape shape{int(std::max(inputs.tokens.size(), inputs.positions.size())), int(inputs.outputs.size()),
                  tiles_of(inputs.seqs), 0};
  for (const SeqRows& s : inputs.seqs) {
    shape.history = std::max(shape.history, s.history);
    shape.rows = std::max(shape.rows, s.first_row + s.rows);
  }
  if (!pad) return shape;
  shape.rows = padded_rows(shape.rows);
  if (shape.outputs > 0) shape.outputs = padded_rows(shape.outputs);
  shape.tiles = padded_rows(shape.tiles);
  shape.history = padded_history(shape.history);
  return shape;
}

size_t StepBlock::lay_out(const StepShape& shape, bool prompt, char* base, StepView& view) const {
  size_t at = 0;
  const auto place = [&](size_t bytes) {
    char* address = base + at;
    at += aligned(bytes);
    return address;
  };
  const size_t rows = size_t(shape.rows);
  view.tokens = reinterpret_cast<const Token*>(place(rows * sizeof(Token)));
  view.positions = reinterpret_cast<const int32_t*>(place(rows * sizeof(int32_t)));
  view.outputs = reinterpret_cast<const int32_t*>(place(size_t(shape.outputs) * sizeof(int32_t)));
  view.rows = reinterpret_cast<const RowInfo*>(place(rows * sizeof(RowInfo)));
  view.ancestors = reinterpret_cast<const uint64_t*>(place(prompt ? 0 : rows * kAncestorWords * sizeof(uint64_t)));
  view.tiles = reinterpret_cast<const RowTile*>(place(prompt ? 0 : size_t(shape.tiles) * sizeof(RowTile)));
  return at;
}

void StepBlock::send(const StepInputs& inputs, const StepShape& shape, Staging& staging) {
  SX_ASSERT(shape.rows <= capacity_ && shape.outputs <= capacity_ && shape.tiles <= capacity_);
  const size_t bytes = lay_out(shape, inputs.prompt, device_, view_);
  char* base = static_cast<char*>(staging.begin(bytes));
  std::memset(base, 0, bytes);
  StepView host;
  lay_out(shape, inputs.prompt, base, host);
  const auto copy = [](const auto* to, const auto& from) {
    std::memcpy(const_cast<void*>(static_cast<const void*>(to)), from.data(), from.size_bytes());
  };
  if (!inputs.tokens.empty()) copy(host.tokens, inputs.tokens);
  if (!inputs.positions.empty()) copy(host.positions, inputs.positions);
  if (!inputs.outputs.empty()) copy(host.outputs, inputs.outputs);
  auto* rows = const_cast<RowInfo*>(host.rows);
  auto* bits = const_cast<uint64_t*>(host.ancestors);
  auto* tiles = const_cast<RowTile*>(host.tiles);
  for (int r = 0; r < shape.rows; ++r) rows[r].slot = -1;
  for (const SeqRows& seq : inputs.seqs) {
    for (int i = 0; i < seq.rows; ++i) {
      const int r = seq.first_row + i, node = seq.uncommitted + i;
      const int depth = inputs.prompt ? node : fill_ancestors(seq, i, bits + ptrdiff_t(r) * kAncestorWords);
      rows[r] = {seq.slot, seq.history, seq.history + node, seq.history + depth};
    }
    for (int first = 0; !inputs.prompt && first < seq.rows; first += kTileRows)
      *tiles++ = {seq.first_row + first, std::min(kTileRows, seq.rows - first), seq.slot, seq.history};
  }
  staging.send(device_, bytes);
}

}  // namespace sx::cuda
