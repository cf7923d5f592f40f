#include "backend/cuda/runtime/graphs.h"

#include "base/rng.h"

namespace sx::cuda {

void Graphs::clear() {
  for (const Entry& e : entries_) cudaGraphExecDestroy(e.graph);
  entries_.clear();
  places_.clear();
}

size_t Graphs::Hash::operator()(const Key& key) const {
  uint64_t h = key.step.plan;
  for (const void* p : {key.step.owner, key.step.kv, key.step.input}) h = mix64(h ^ reinterpret_cast<uintptr_t>(p));
  for (int n : {key.shape.rows, key.shape.outputs, key.shape.tiles, key.shape.history}) h = mix64(h ^ uint64_t(n));
  return h;
}

cudaGraphExec_t Graphs::find(const StepKey& key, const StepShape& shape) {
  const auto found = places_.find({key, shape});
  if (found == places_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->graph;
}

void Graphs::begin(cudaStream_t stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "recording a step");
}

void Graphs::abandon(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream, &graph);
  if (graph) cudaGraphDestroy(graph);
}

cudaGraphExec_t Graphs::end(const StepKey& key, const StepShape& shape, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "recording a step");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  check(made, "recording a step");
  keep(key, shape, exec, stream);
  return exec;
}

void Graphs::keep(const StepKey& key, const StepShape& shape, cudaGraphExec_t graph, cudaStream_t stream) {
  if (entries_.size() == most_) {
    check(cudaStreamSynchronize(stream), "recording a step");
    cudaGraphExecDestroy(entries_.back().graph);
    places_.erase(entries_.back().key);
    entries_.pop_back();
  }
  entries_.push_front({{key, shape}, graph});
  places_[{key, shape}] = entries_.begin();
}

}  // namespace sx::cuda
