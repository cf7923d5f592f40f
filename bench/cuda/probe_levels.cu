// nvcc -std=c++20 -O3 -Isrc -Iinclude -gencode=arch=compute_90a,code=sm_90a -o probe_levels bench/cuda/probe_levels.cu src/backend/cuda/runtime/device.cu
//
// What a loop inside a CUDA graph costs: a WHILE node whose body is a chain of small kernels, the last of which decides
// whether to go on. Side by side, per iteration: that loop with and without programmatic launches in its body, the same
// chain unrolled in one graph, and a graph launch and a wait for every iteration, as a host between the levels of a
// draft needs them. Also whether clusters and IF nodes are taken inside the body, and what a loop takes of the device's
// memory. Wrong counts end it with 1.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "backend/cuda/runtime/launch.cuh"

namespace {

using namespace sx::cuda;

struct State {
  int rounds, left, chain, seen;
};

bool dependent = true;

// One link of the chain: a few hundred nanoseconds of work in 64 blocks.
__global__ void link(State* state, float* values, int links) {
  let_next_start();
  wait_for_previous();
  float x = values[blockIdx.x * blockDim.x + threadIdx.x];
  for (int i = 0; i < 8; ++i) x = fmaf(x, 0.5f, 1.0f);
  values[blockIdx.x * blockDim.x + threadIdx.x] = x;
  if (blockIdx.x == 0 && threadIdx.x == 0) state->chain = state->chain % links + 1;
}

__global__ void __cluster_dims__(4, 1, 1) clustered(State* state) {
  wait_for_previous();
  if (blockIdx.x == 0 && threadIdx.x == 0) state->seen += 1;
}

// Ends an iteration. handle 0: there is no loop to tell.
__global__ void decide(State* state, cudaGraphConditionalHandle handle, bool loops, volatile int* host) {
  let_next_start();
  wait_for_previous();
  if (threadIdx.x != 0) return;
  state->rounds += 1;
  state->left -= 1;
  if (loops) cudaGraphSetConditional(handle, state->left > 0 ? 1u : 0u);
  if (state->left == 0) *host = state->rounds;
}

__global__ void begin(State* state, int rounds) {
  wait_for_previous();
  if (threadIdx.x == 0) state->rounds = 0, state->left = rounds, state->chain = 0, state->seen = 0;
}

__global__ void choose_branch(State* state, cudaGraphConditionalHandle handle) {
  wait_for_previous();
  if (threadIdx.x == 0) cudaGraphSetConditional(handle, state->left % 2);
}

template <class... P, class... A>
void go(void (*kernel)(P...), unsigned grid, unsigned block, cudaStream_t stream, A... arguments) {
  if (dependent) return launch(kernel, grid, block, 0, stream, arguments...);
  kernel<<<grid, block, 0, stream>>>(P(arguments)...);
  check(cudaGetLastError(), "launch");
}

struct Probe {
  cudaStream_t stream = nullptr;
  State* state = nullptr;
  float* values = nullptr;
  int* host = nullptr;

  Probe() {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    check(cudaMalloc(&state, sizeof(State)), "memory");
    check(cudaMalloc(&values, 64 * 128 * sizeof(float)), "memory");
    check(cudaMemset(values, 0, 64 * 128 * sizeof(float)), "memory");
    check(cudaHostAlloc(&host, sizeof(int), cudaHostAllocMapped), "memory");
    settle();
  }
  ~Probe() {
    cudaStreamDestroy(stream);  // a recording that failed ends with it
    cudaFree(state), cudaFree(values), cudaFreeHost(host);
  }

  void chain(int links, cudaGraphConditionalHandle handle, bool loops, bool cluster) {
    for (int i = 0; i < links; ++i) go(link, 64, 128, stream, state, values, links);
    if (cluster) go(clustered, 8, 64, stream, state);
    go(decide, 1, 32, stream, state, handle, loops, static_cast<volatile int*>(host));
  }

  // What the stream has recorded so far, as dependencies of a node added by hand.
  cudaGraph_t recorded(const cudaGraphNode_t** nodes, size_t* count) {
    cudaStreamCaptureStatus status;
    cudaGraph_t graph = nullptr;
    check(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, nodes, nullptr, count), "capture info");
    return graph;
  }
  cudaGraph_t add_conditional(cudaGraphConditionalHandle handle, cudaGraphConditionalNodeType type) {
    const cudaGraphNode_t* nodes = nullptr;
    size_t count = 0;
    cudaGraph_t graph = recorded(&nodes, &count);
    cudaGraphNodeParams params{};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = 1;
    cudaGraphNode_t node;
    check(cudaGraphAddNode(&node, graph, nodes, nullptr, count, &params), "conditional node");
    check(cudaStreamUpdateCaptureDependencies(stream, &node, nullptr, 1, cudaStreamSetCaptureDependencies),
          "dependencies");
    return params.conditional.phGraph_out[0];
  }

  cudaGraphExec_t loop(int links, int rounds, bool cluster, bool branch) {
    cudaGraph_t graph;
    check(cudaGraphCreate(&graph, 0), "graph");
    cudaGraphConditionalHandle handle;
    check(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault), "handle");
    check(cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed), "capture");
    go(begin, 1, 32, stream, state, rounds);
    cudaGraph_t body = add_conditional(handle, cudaGraphCondTypeWhile), same;
    check(cudaStreamEndCapture(stream, &same), "end of capture");
    cudaGraphConditionalHandle inner{};
    if (branch) check(cudaGraphConditionalHandleCreate(&inner, body, 0, cudaGraphCondAssignDefault), "inner handle");
    check(cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed),
          "capture of a body");
    if (branch) {
      go(choose_branch, 1, 32, stream, state, inner);
      cudaGraph_t taken = add_conditional(inner, cudaGraphCondTypeIf);
      cudaStream_t other;
      check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "stream");
      std::swap(stream, other);
      check(cudaStreamBeginCaptureToGraph(stream, taken, nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed),
            "capture of a branch");
      go(clustered, 8, 64, stream, state);
      check(cudaStreamEndCapture(stream, &same), "end of capture of a branch");
      std::swap(stream, other);
      cudaStreamDestroy(other);
    }
    chain(links, handle, true, cluster);
    check(cudaStreamEndCapture(stream, &same), "end of capture of a body");
    cudaGraphExec_t exec;
    check(cudaGraphInstantiate(&exec, graph, 0), "instantiation");
    cudaGraphDestroy(graph);
    return exec;
  }

  cudaGraphExec_t unrolled(int links, int rounds, bool with_begin) {
    cudaGraph_t graph;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capture");
    if (with_begin) go(begin, 1, 32, stream, state, rounds);
    for (int i = 0; i < rounds; ++i) chain(links, {}, false, false);
    check(cudaStreamEndCapture(stream, &graph), "end of capture");
    cudaGraphExec_t exec;
    check(cudaGraphInstantiate(&exec, graph, 0), "instantiation");
    cudaGraphDestroy(graph);
    return exec;
  }

  template <class Body>
  double us(Body body) {
    std::vector<float> times;
    cudaEvent_t a, b;
    cudaEventCreate(&a), cudaEventCreate(&b);
    for (int i = 0; i < 40; ++i) {
      cudaEventRecord(a, stream);
      body();
      cudaEventRecord(b, stream);
      check(cudaEventSynchronize(b), "waiting");
      float ms = 0;
      cudaEventElapsedTime(&ms, a, b);
      times.push_back(ms * 1000);
    }
    cudaEventDestroy(a), cudaEventDestroy(b);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
};

int failures = 0;

template <class Body>
void attempt(const char* what, Body body) {
  try {
    body();
  } catch (const std::exception& error) {
    std::printf("%s: %s\n", what, error.what());
    cudaGetLastError();
  }
}

void expect(const char* what, int found, int wanted) {
  if (found == wanted) return;
  std::printf("WRONG %s: %d, expected %d\n", what, found, wanted);
  ++failures;
}

}  // namespace

int main() {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver), cudaRuntimeGetVersion(&runtime);
  std::printf("driver %d, runtime %d\n", driver, runtime);
  for (bool with : {true, false}) {
    dependent = with;
    for (int links : {2, 20, 40}) {
      attempt("loop", [&] {
        Probe p;
        constexpr int kRounds = 10;
        size_t before = 0, after = 0, all = 0;
        cudaMemGetInfo(&before, &all);
        const cudaGraphExec_t loop = p.loop(links, kRounds, false, false), once = p.unrolled(links, 1, false),
                              flat = p.unrolled(links, kRounds, true);
        const cudaGraphExec_t none = p.loop(links, 1, false, false);
        const double looped = p.us([&] { check(cudaGraphLaunch(loop, p.stream), "launch"); });
        State s;
        check(cudaMemcpy(&s, p.state, sizeof s, cudaMemcpyDeviceToHost), "state");
        expect("rounds", s.rounds, kRounds), expect("links", s.chain, links), expect("left", s.left, 0),
            expect("seen by the host", *p.host, kRounds);
        const double one = p.us([&] { check(cudaGraphLaunch(none, p.stream), "launch"); });
        const double unrolled = p.us([&] { check(cudaGraphLaunch(flat, p.stream), "launch"); });
        const double waited = p.us([&] {
          for (int i = 0; i < kRounds; ++i) {
            check(cudaGraphLaunch(once, p.stream), "launch");
            check(cudaStreamSynchronize(p.stream), "wait");
          }
        });
        cudaMemGetInfo(&after, &all);
        std::printf(
            "%2d links%s: loop of 10 %.1f us, of 1 %.1f (%.2f a round more); unrolled %.1f (%.2f a round); graph and wait %.2f a round; memory %.1f MB\n",
            links, with ? ", programmatic" : "", looped, one, (looped - one) / (kRounds - 1), unrolled,
            unrolled / kRounds, waited / kRounds, double(before - after) / 1e6);
      });
      attempt("cluster or branch inside", [&] {
        Probe p;
        State s;
        const cudaGraphExec_t cluster = p.loop(links, 10, true, false);
        const double clusters = p.us([&] { check(cudaGraphLaunch(cluster, p.stream), "launch"); });
        check(cudaMemcpy(&s, p.state, sizeof s, cudaMemcpyDeviceToHost), "state");
        expect("clusters", s.seen, 10);
        std::printf("  with clusters %.1f us", clusters);
        const cudaGraphExec_t branch = p.loop(links, 10, false, true);
        const double branches = p.us([&] { check(cudaGraphLaunch(branch, p.stream), "launch"); });
        check(cudaMemcpy(&s, p.state, sizeof s, cudaMemcpyDeviceToHost), "state");
        expect("branches", s.seen, 5);
        std::printf(", with an IF in the body %.1f us\n", branches);
      });
    }
  }
  std::printf(failures == 0 ? "counts are right\n" : "%d counts are wrong\n", failures);
  return failures != 0;
}
