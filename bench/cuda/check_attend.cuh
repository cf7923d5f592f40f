// Random stores and steps for check_attend.cu, on the host and on the device.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/runtime/device.h"

namespace sx::cuda {

inline std::mt19937_64 random(7);

inline float uniform() { return float(random() >> 40) / float(1 << 23) - 1.0f; }  // [-1, 1)
inline int below(int n) { return int(random() % uint64_t(n)); }

template <class T>
struct Device {
  T* data = nullptr;
  size_t count = 0;
  explicit Device(size_t n) : count(n) {
    check(cudaMalloc(reinterpret_cast<void**>(&data), std::max<size_t>(n, 1) * sizeof(T)), "memory");
  }
  explicit Device(const std::vector<T>& from) : Device(from.size()) { put(from); }
  ~Device() { cudaFree(data); }
  Device(const Device&) = delete;
  void put(const std::vector<T>& from) {
    check(cudaMemcpy(data, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  std::vector<T> get() const {
    std::vector<T> out(count);
    check(cudaMemcpy(out.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return out;
  }
  void poison() { check(cudaMemset(data, 0xff, count * sizeof(T)), "poison"); }
};

inline uint16_t half_bits(float x) {
  const __half half = __float2half_rn(x);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
inline float half_value(uint16_t bits) {
  __half_raw raw;
  raw.x = bits;
  return __half2float(__half(raw));
}
inline uint16_t brain_bits(float x) {
  const __nv_bfloat16 brain = __float2bfloat16_rn(x);
  uint16_t bits;
  std::memcpy(&bits, &brain, 2);
  return bits;
}
inline float brain_value(uint16_t bits) {
  const uint32_t word = uint32_t(bits) << 16;
  float x;
  std::memcpy(&x, &word, 4);
  return x;
}

// A store of two layers, of which the second is used. What is not set is NaN, so that reading it shows.
struct Store {
  static constexpr int kLayers = 2;
  DType type;
  int slots, kv_heads, capacity, head_dim;
  size_t blocks, cells;           // blocks of a slot; cells of all
  std::vector<uint8_t> bytes[2];  // K, V
  std::vector<uint16_t> scales[2];
  std::vector<float> values[2];  // of the second layer

  Store(DType t, int slot_count, int kv, int cap, int dim)
      : type(t), slots(slot_count), kv_heads(kv), capacity(cap), head_dim(dim) {
    blocks = size_t(capacity + kCellBlock - 1) / kCellBlock;
    cells = kLayers * size_t(slots) * size_t(kv_heads) * blocks * kCellBlock;
    for (int which = 0; which < 2; ++which) {
      bytes[which].assign(cells * size_t(head_dim) * (type == DType::kQ8_0 ? 1 : 2), 0xff);
      scales[which].assign(type == DType::kQ8_0 ? cells * size_t(head_dim / 32) : 1, 0xffff);
      values[which].assign(cells * size_t(head_dim), NAN);
    }
  }
  size_t cell(int slot, int head, int at) const {
    const size_t block = size_t(slot) * blocks + size_t(at / kCellBlock);
    return ((block * kLayers + 1) * size_t(kv_heads) + size_t(head)) * kCellBlock + size_t(at % kCellBlock);
  }
  void fill(int slot, int at) {
    for (int which = 0; which < 2; ++which) {
      for (int head = 0; head < kv_heads; ++head) {
        const size_t here = cell(slot, head, at);
        for (int d = 0; d < head_dim; ++d) {
          float& value = values[which][here * size_t(head_dim) + size_t(d)];
          const size_t i = here * size_t(head_dim) + size_t(d);
          if (type == DType::kQ8_0) {
            uint16_t& scale = scales[which][here * size_t(head_dim / 32) + size_t(d / 32)];
            if (d % 32 == 0) scale = half_bits((1.5f + uniform()) / 127);
            const int q = below(255) - 127;
            bytes[which][i] = uint8_t(int8_t(q));
            value = half_value(scale) * float(q);
          } else {
            const uint16_t bits = type == DType::kBF16 ? brain_bits(1.7f * uniform()) : half_bits(1.7f * uniform());
            std::memcpy(&bytes[which][2 * i], &bits, 2);
            value = type == DType::kBF16 ? brain_value(bits) : half_value(bits);
          }
        }
      }
    }
  }
  void poison(int slot, int at) {
    const size_t row = size_t(head_dim) * (type == DType::kQ8_0 ? 1 : 2), groups = size_t(head_dim / 32);
    for (int which = 0; which < 2; ++which) {
      for (int head = 0; head < kv_heads; ++head) {
        const size_t here = cell(slot, head, at);
        std::memset(&bytes[which][here * row], 0xff, row);
        if (type == DType::kQ8_0) std::memset(&scales[which][here * groups], 0xff, groups * 2);
      }
    }
  }
  void copy(int to_slot, int to, int from_slot, int from) {
    const size_t row = size_t(head_dim) * (type == DType::kQ8_0 ? 1 : 2);
    for (int which = 0; which < 2; ++which) {
      for (int head = 0; head < kv_heads; ++head) {
        const size_t a = cell(to_slot, head, to), b = cell(from_slot, head, from);
        std::memcpy(&bytes[which][a * row], &bytes[which][b * row], row);
        if (type == DType::kQ8_0) {
          const size_t count = size_t(head_dim / 32);
          std::memcpy(&scales[which][a * count], &scales[which][b * count], count * 2);
        }
      }
    }
  }
};

struct DeviceStore {
  Device<uint8_t> k, v;
  Device<uint16_t> k_scale, v_scale;
  KvView view;
  explicit DeviceStore(const Store& s) : k(s.bytes[0]), v(s.bytes[1]), k_scale(s.scales[0]), v_scale(s.scales[1]) {
    view = KvView{s.type,
                  Store::kLayers,
                  s.slots,
                  s.kv_heads,
                  s.capacity,
                  s.head_dim,
                  reinterpret_cast<std::byte*>(k.data),
                  reinterpret_cast<std::byte*>(v.data),
                  k_scale.data,
                  v_scale.data};
  }
};

struct Sequence {
  int slot, history;
  std::vector<int> parents;  // of the nodes of the tail; -1: root
  int uncommitted;           // nodes written by earlier steps
  std::vector<int> path(int node) const {
    std::vector<int> out;
    for (int at = node; at >= 0; at = parents[size_t(at)]) out.insert(out.begin(), at);
    return out;
  }
};

struct Row {
  int sequence, node;
  std::vector<int> cells;  // in index order
};

struct Step {
  std::vector<RowInfo> rows;
  std::vector<uint64_t> ancestors;
  std::vector<RowTile> tiles;
  std::vector<Row> host;  // sequence -1: padding
  int history = 0;

  void pad_rows(int count) {
    for (int i = 0; i < count; ++i) {
      rows.push_back({-1, 0, 0, 0});
      ancestors.insert(ancestors.end(), kAncestorWords, 0);
      host.push_back({-1, 0, {}});
    }
  }
  void add(const Sequence& sequence, int number, int tile_rows = kTileRows) {
    history = std::max(history, sequence.history);
    const int nodes = int(sequence.parents.size());
    for (int node = sequence.uncommitted; node < nodes; ++node) {
      if ((node - sequence.uncommitted) % tile_rows == 0) {
        tiles.push_back({int(rows.size()), std::min(tile_rows, nodes - node), sequence.slot, sequence.history});
      }
      const std::vector<int> path = sequence.path(node);
      const int index = sequence.history + int(path.size()) - 1;
      rows.push_back({sequence.slot, sequence.history, sequence.history + node, index});
      uint64_t words[kAncestorWords] = {};
      Row row{number, node, {}};
      for (int i = 0; i < sequence.history; ++i) row.cells.push_back(i);
      for (int at : path) {
        words[at / 64] |= uint64_t(1) << (at % 64);
        row.cells.push_back(sequence.history + at);
      }
      ancestors.insert(ancestors.end(), words, words + kAncestorWords);
      host.push_back(row);
    }
  }
};

// Chains with branches: a node's parent is mostly the one before; depth below 64.
inline std::vector<int> random_tree(int nodes, int roots_before, int branch_percent) {
  std::vector<int> parents, depth;
  for (int node = 0; node < nodes; ++node) {
    int parent = node - 1;
    if (node > roots_before && below(100) < branch_percent) parent = below(node);
    while (parent >= 0 && depth[size_t(parent)] >= kMaxDepth) parent = parents[size_t(parent)];
    parents.push_back(parent);
    depth.push_back(parent < 0 ? 0 : depth[size_t(parent)] + 1);
  }
  return parents;
}

}  // namespace sx::cuda
