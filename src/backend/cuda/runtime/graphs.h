// Recorded steps, and the loops of tree expansion around them: one CUDA graph per key and shape, captured when the
// shape first occurs; the least recently used is destroyed when there are too many.
#pragma once
#include <cstdint>
#include <list>
#include <unordered_map>

#include "backend/cuda/runtime/device.h"
#include "backend/cuda/runtime/step_block.h"
#include "backend/ops.h"

namespace sx::cuda {

class Graphs {
 public:
  explicit Graphs(size_t most) : most_(most) {}
  ~Graphs() { clear(); }
  void clear();
  // The recorded step or null.
  cudaGraphExec_t find(const StepKey& key, const StepShape& shape);
  // Between begin and end everything launched on the stream is recorded, not run.
  void begin(cudaStream_t stream);
  cudaGraphExec_t end(const StepKey& key, const StepShape& shape, cudaStream_t stream);
  void abandon(cudaStream_t stream);  // instead of end, after an error
  // One that was made elsewhere, to be kept here.
  void keep(const StepKey& key, const StepShape& shape, cudaGraphExec_t graph, cudaStream_t stream);
  size_t size() const { return entries_.size(); }

 private:
  struct Key {
    StepKey step;
    StepShape shape;
    bool operator==(const Key& o) const {
      return step.owner == o.step.owner && step.kv == o.step.kv && step.input == o.step.input &&
             step.plan == o.step.plan && shape == o.shape;
    }
  };
  struct Hash {
    size_t operator()(const Key& key) const;
  };
  struct Entry {
    Key key;
    cudaGraphExec_t graph;
  };
  size_t most_;
  std::list<Entry> entries_;  // last used first
  std::unordered_map<Key, std::list<Entry>::iterator, Hash> places_;
};

}  // namespace sx::cuda
