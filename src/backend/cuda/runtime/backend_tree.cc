// Device-side tree expansion: a recorded graph with a WHILE node repeats a pass, its top-k tokens and the expansion of
// the next level until the last of these kernels clears the condition.
#include <algorithm>
#include <cstdlib>

#include "backend/cuda/runtime/backend.h"
#include "backend/cuda/sampling/choose.h"
#include "backend/cuda/elementwise/norm_glu_embed.h"
#include "base/error.h"
#include "base/rng.h"

namespace sx::cuda {
namespace {

constexpr int kNeeds = 12040;     // CUDA 12.4
constexpr int32_t kGrowing = -1;  // await_written polls until it changes

// CUDA 13 has given these the names of their predecessors.
#if CUDART_VERSION >= 13000
constexpr auto add_node = cudaGraphAddNode;
constexpr auto capture_info = cudaStreamGetCaptureInfo;
constexpr auto update_dependencies = cudaStreamUpdateCaptureDependencies;
#else
constexpr auto add_node = cudaGraphAddNode_v2;
constexpr auto capture_info = cudaStreamGetCaptureInfo_v3;
constexpr auto update_dependencies = cudaStreamUpdateCaptureDependencies_v2;
#endif

// A graph under construction: what is recorded ends with it.
class Recording {
 public:
  explicit Recording(cudaStream_t stream) : stream_(stream) { check(cudaGraphCreate(&graph_, 0), "a loop"); }
  ~Recording() {
    if (open_) {
      cudaGraph_t part = nullptr;
      cudaStreamEndCapture(stream_, &part);  // the same graph, or null
    }
    cudaGraphDestroy(graph_);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  cudaGraph_t graph() const { return graph_; }
  void begin(cudaGraph_t into) {
    check(cudaStreamBeginCaptureToGraph(stream_, into, nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed),
          "recording a loop");
    open_ = true;
  }
  void end() {
    open_ = false;
    cudaGraph_t same = nullptr;
    check(cudaStreamEndCapture(stream_, &same), "recording a loop");
  }
  // A loop behind what was recorded so far; its body.
  cudaGraph_t add_loop(cudaGraphConditionalHandle handle) {
    cudaStreamCaptureStatus status;
    cudaGraph_t graph = nullptr;
    const cudaGraphNode_t* nodes = nullptr;
    size_t count = 0;
    check(capture_info(stream_, &status, nullptr, &graph, &nodes, nullptr, &count), "recording a loop");
    cudaGraphNodeParams params{};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = cudaGraphCondTypeWhile;
    params.conditional.size = 1;
    cudaGraphNode_t node;
    check(add_node(&node, graph, nodes, nullptr, count, &params), "a loop");
    check(update_dependencies(stream_, &node, nullptr, 1, cudaStreamSetCaptureDependencies), "a loop");
    return params.conditional.phGraph_out[0];
  }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  bool open_ = false;
};

// Candidates per row from which a node's children are chosen.
int candidates_of(const TreeGrowthArgs& a) { return std::min(std::max(a.rules.branch, a.sampling.pool), a.vocab); }

bool fits(const TreeGrowthArgs& a) {
  const TreeGrowthRules& r = a.rules;
  return a.sampling.pool <= kLevelBranch && r.rows > 0 && r.rows <= kLevelRows && r.branch <= kLevelBranch &&
         r.nodes > 0 && r.nodes <= kLevelNodes && r.depth > 0 && r.depth <= kLevelDepth &&
         r.rows * (r.depth - 1) <= kAncestorWords * 64 && 1 + r.nodes * r.depth <= kTreeGrown;
}

}  // namespace

int most_level_rows() {
  int driver = 0, runtime = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || cudaRuntimeGetVersion(&runtime) != cudaSuccess) return 0;
  if (std::min(driver, runtime) < kNeeds) return 0;
  const char* wanted = std::getenv("SPECEXTEND_LEVELS");
  return wanted && *wanted ? std::clamp(std::atoi(wanted), 0, kLevelRows) : kUsualRows;
}

void CudaBackend::reserve_tree_growth() {
  if (level_rows_ == 0 || plan_) return;
  plan_ = static_cast<TreeGrowthPlan*>(arena_.take(sizeof(TreeGrowthPlan), "trees of drafts"));
  growth_ = static_cast<TreeGrowthState*>(arena_.take(sizeof(TreeGrowthState), "trees of drafts"));
  likeliest_ = static_cast<Candidate*>(arena_.take(sizeof(Candidate) * kLevelRows * kLevelBranch, "trees of drafts"));
  if (dry()) return;
  void* host = nullptr;
  check(cudaHostAlloc(&host, sizeof(TreeGrowthResult), cudaHostAllocMapped), "pinned memory");
  grown_ = static_cast<TreeGrowthResult*>(host);
}

void CudaBackend::send_plan(const TreeGrowthArgs& a) {
  const TreeGrowthRules& r = a.rules;
  auto& plan = *static_cast<TreeGrowthPlan*>(staging_->begin(sizeof(TreeGrowthPlan)));
  plan.nodes = r.nodes, plan.depth = r.depth, plan.branch = r.branch, plan.rows = r.rows;
  plan.dead = r.dead, plan.level_cost = r.level_cost, plan.threshold = r.threshold;
  plan.while_it_pays = r.while_it_pays, plan.with_costs = r.verify_cost != nullptr;
  plan.slot = a.slot, plan.history = a.history;
  const TreeGrowthSampling& s = a.sampling;
  plan.top_k = s.top_k, plan.noise = s.noise, plan.temperature = s.temperature, plan.top_p = s.top_p,
  plan.least = s.least;
  plan.seed = s.seed, plan.position = s.position;
  std::copy_n(a.positions, r.depth - 1, plan.positions);
  if (r.verify_cost) std::copy_n(r.verify_cost, r.nodes + 1, plan.verify_cost);
  staging_->send(plan_, sizeof(TreeGrowthPlan));
}

// A level from so many rows of logits.
void CudaBackend::grow_from(const TreeGrowthArgs& a, const GrowCall& grow, int rows) {
  void* sums = scratch(top_k_, top_k_scratch_bytes(kLevelRows, a.vocab, grow.each), "likeliest tokens");
  cuda::top_k({grow.candidates, a.logits, rows, a.vocab, a.stride, grow.each}, sums, stream_);
  if (a.sampling.pool > 0) reweigh_candidates(grow, rows, stream_);
  grow_level(grow, stream_);
}

cudaGraphExec_t CudaBackend::record_loop(const TreeGrowthArgs& a, FunctionRef body) {
  Recording recording(stream_);
  GrowCall grow{plan_, growth_, nullptr, likeliest_, candidates_of(a), a.map, level_step_, {}, true, true};
  void* result = nullptr;
  check(cudaHostGetDevicePointer(&result, grown_, 0), "pinned memory");
  grow.result = static_cast<TreeGrowthResult*>(result);
  check(cudaGraphConditionalHandleCreate(&grow.loop, recording.graph(), 0, cudaGraphCondAssignDefault), "a loop");
  recording.begin(recording.graph());
  grow_from(a, grow, 1);  // of the root
  const cudaGraph_t levels = recording.add_loop(grow.loop);
  recording.end();
  recording.begin(levels);
  body();
  grow.begins = false;
  grow_from(a, grow, shape_.outputs);
  if (a.states)
    cuda::copy_rows({a.states, a.left, shape_.rows, a.width, a.width, a.width, growth_->parents, false}, stream_);
  recording.end();
  cudaGraphExec_t exec = nullptr;
  check(cudaGraphInstantiate(&exec, recording.graph(), 0), "a loop");
  return exec;
}

// Returns null where this device cannot record loops; the caller then stops trying.
cudaGraphExec_t CudaBackend::record_tree_growth(const TreeGrowthArgs& a, StepInputs& step, FunctionRef body) {
  struct Leave {
    CudaBackend& backend;
    ~Leave() { backend.step_ = nullptr, backend.shadow_.of = nullptr, backend.deferred_.x = nullptr; }
  } leave{*this};
  Token tokens[kLevelRows] = {};
  int32_t positions[kLevelRows] = {}, outputs[kLevelRows] = {};
  const SeqRows seq{0, a.rules.rows, a.slot, a.history};
  const size_t rows = size_t(a.rules.rows);
  step.tokens = {tokens, rows}, step.positions = {positions, rows}, step.outputs = {outputs, rows},
  step.seqs = {&seq, 1};
  step.prompt = false;
  step_ = &step;
  for (;;) {
    shadow_.of = unwritten_ = nullptr, deferred_.x = nullptr;
    const PlainLaunches plain(plain_loops_);
    try {
      return record_loop(a, body);
    } catch (const Error&) {  // what cannot be recorded can be run step by step
      cudaGetLastError();
    }
    if (plain_loops_) return nullptr;
    plain_loops_ = true;
  }
}

bool CudaBackend::grow_tree(const TreeGrowthArgs& a, StepInputs& step, const StepKey& key, FunctionRef body) {
  bind();
  SX_ASSERT(!in_step());
  if (dry() || level_rows_ == 0 || !grown_ || !fits(a)) return false;
  shadow_.of = nullptr;
  step_kv_ = key.kv;
  if (const auto* kv = static_cast<const KvStore*>(key.kv); kv && !kv->geometry().spread)
    hold(*kv, a.slot, a.history, a.history + a.rules.rows * (a.rules.depth - 1));
  padding_ = true;
  shape_ = {padded_rows(a.rules.rows), padded_rows(a.rules.rows), 1, padded_history(a.history)};
  block_.place(shape_);
  const StepView view = block_.view();
  level_step_ = {const_cast<Token*>(view.tokens),
                 const_cast<int32_t*>(view.positions),
                 const_cast<int32_t*>(view.outputs),
                 const_cast<RowInfo*>(view.rows),
                 const_cast<uint64_t*>(view.ancestors),
                 const_cast<RowTile*>(view.tiles),
                 shape_.rows};
  StepKey loop = key;
  loop.plan =
      mix64(mix64(key.plan + 1) ^ (uint64_t(candidates_of(a)) << 32 | uint32_t(a.vocab))) + (a.sampling.pool > 0);
  cudaGraphExec_t graph = loops_.find(loop, shape_);
  if (!graph) {
    graph = record_tree_growth(a, step, body);
    if (!graph) return level_rows_ = 0, false;
    loops_.keep(loop, shape_, graph, stream_);
  }
  send_plan(a);
  grown_->size = kGrowing;
  check(cudaGraphLaunch(graph, stream_), "a recorded loop");
  await_written(&grown_->size, 1);
  GrownTree& out = *a.out;
  out.size = grown_->size, out.run = grown_->ran, out.passes = grown_->passes;
  for (int n = 1; n < out.size; ++n) {
    const LevelNode& node = grown_->node[n];
    out.token[n] = node.token, out.parent[n] = node.parent, out.score[n] = node.score;
  }
  std::copy_n(grown_->order, out.run, out.ran);
  return true;
}

}  // namespace sx::cuda
