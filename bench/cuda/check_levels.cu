// nvcc -std=c++20 -O3 -lineinfo -Isrc -Iinclude --expt-relaxed-constexpr -gencode=arch=compute_90a,code=sm_90a -o check_levels
//     bench/cuda/check_levels.cu src/backend/cuda/tree/grow_tree.cu src/backend/cuda/runtime/device.cu
//
// The kernels that grow a draft's tree, in a loop inside a graph as the backend has them, against a plain host
// computation of the same rules: every node, parent and score and the order of cells must be equal. In place of a model
// a kernel makes up candidates from all the integers of the step (tokens, positions, cells, ancestors, the tile), so
// that a wrong one gives another tree; with many ties, and with numbers that are none. Then times: what an iteration
// costs beside the pass. "check_levels few": fewer trees, kernels launched one by one without a graph, no times; for
// compute-sanitizer.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cuda/runtime/launch.cuh"
#include "backend/cuda/tree/grow_tree.h"
#include "base/fixed_math.h"
#include "base/rng.h"

namespace {

using namespace sx;
using namespace sx::cuda;

constexpr int kVocab = 1000;

// Candidate j after a row that looks like this; best first is not promised, nor that tokens differ.
__host__ __device__ Candidate made_up(uint64_t row, int j, bool odd) {
  const uint64_t h = mix64(row * 131 + uint64_t(j));
  Candidate c;
  c.token = Token(h % kVocab);
  c.logit = -float(j) * 0.125f - float(row % 7);
  c.logp = -float((h >> 20) % 96) * 0.0625f - 0.015625f * float(j);  // exact, however it is computed
  if (odd && (h >> 40) % 31 == 0) c.logp = -INFINITY;
  if (odd && (h >> 40) % 37 == 0) c.logp = NAN;
  if (odd && (h >> 40) % 41 == 0) c.logp = 0.5f;
  return c;
}
__host__ __device__ uint64_t looks(Token token, int position, RowInfo info, const uint64_t* bits, RowTile tile,
                                   uint64_t seed) {
  uint64_t h = mix64(seed ^ uint64_t(uint32_t(token)));
  for (int x :
       {position, info.slot, info.history, info.cell, info.index, tile.first_row, tile.rows, tile.slot, tile.history})
    h = mix64(h * 3 + uint64_t(uint32_t(x)));
  for (int w = 0; w < kAncestorWords; ++w) h = mix64(h * 5 + bits[w]);
  return h;
}

struct Pass {
  GrowCall grow;
  const uint64_t* seed;
  bool odd;
};

__global__ void pass_kernel(Pass p) {
  wait_for_previous();
  const int row = blockIdx.x;
  if (!p.grow.begins && row >= p.grow.state->frontier) {
    if (threadIdx.x == 0 && p.grow.step.rows[row].slot != -1) __trap();  // padding says so
    return;
  }
  const TreeGrowthStep& s = p.grow.step;
  const uint64_t h = p.grow.begins ? mix64(*p.seed)
                                   : looks(s.tokens[row], s.positions[row], s.rows[row],
                                           s.ancestors + row * kAncestorWords, *s.tile, *p.seed);
  for (int j = threadIdx.x; j < p.grow.each; j += blockDim.x)
    p.grow.candidates[row * p.grow.each + j] = made_up(h, j, p.odd);
}

struct Node {
  int parent, row, order;
  Token token;
  float score;
};
struct Tree {
  std::vector<Node> nodes{{-1, 0, 0, 0, 0.0f}};
  std::vector<int> ran;
  int passes = 0;
};

void reweigh(std::vector<Candidate>& row, const TreeGrowthPlan& plan, uint64_t position) {
  if (plan.top_k > 0 && size_t(plan.top_k) < row.size()) row.resize(size_t(plan.top_k));
  double sum = 0, kept = 0;
  const float top = row[0].logit;
  for (const Candidate& c : row) sum += fixed_exp(double(c.logit - top));
  size_t left = 0;
  while (left < row.size() && kept < double(plan.top_p) * sum) kept += fixed_exp(double(row[left++].logit - top));
  left = std::max<size_t>(left, 1);
  while (plan.least < 0 && left > 1 && double(row[left - 1].logit - top) < plan.least) --left;
  row.resize(left);
  for (Candidate& c : row)
    c.logp = c.logit / plan.temperature + float(fixed_gumbel(plan.seed, position, uint64_t(c.token)));
  std::stable_sort(row.begin(), row.end(), [](const Candidate& a, const Candidate& b) {
    return a.logp != b.logp ? a.logp > b.logp : a.token < b.token;
  });
  sum = 0;
  for (const Candidate& c : row) sum += fixed_exp(double(c.logp) - double(row[0].logp));
  const double all = double(row[0].logp) + fixed_log(sum);
  for (Candidate& c : row) c.logp = float(double(c.logp) - all);
}

Tree expected(const TreeGrowthPlan& plan, int each, uint64_t seed, bool odd, bool sampled) {
  Tree t;
  std::vector<uint64_t> rows{mix64(seed)};
  std::vector<std::vector<uint64_t>> bits;
  std::vector<float> scores{0.0f}, all;
  int first = 0, frontier = 1;
  float floor = plan.dead;
  double sum = 0, gain = 1;
  for (int level = 1;; ++level) {
    std::vector<Node> found;
    for (int r = 0, order = 0; r < frontier; ++r) {
      std::vector<Candidate> row;
      for (int j = 0; j < each; ++j) row.push_back(made_up(rows[size_t(r)], j, odd));
      if (sampled) reweigh(row, plan, plan.position + uint64_t(level - 1));
      for (int j = 0; j < std::min(each, plan.branch); ++j, ++order) {
        if (j >= int(row.size())) continue;
        const float score = scores[size_t(r)] + (row[size_t(j)].logp > 0 ? 0.0f : row[size_t(j)].logp);
        if (score > floor) found.push_back({first + r, r, order, row[size_t(j)].token, score});
      }
    }
    std::sort(found.begin(), found.end(),
              [](const Node& a, const Node& b) { return a.score != b.score ? a.score > b.score : a.order < b.order; });
    if (int(found.size()) > plan.nodes) found.resize(size_t(plan.nodes));
    first = int(t.nodes.size());
    t.nodes.insert(t.nodes.end(), found.begin(), found.end());
    for (const Node& n : found) all.push_back(n.score);
    std::sort(all.begin(), all.end(), std::greater<>());
    const int counted = std::min(int(all.size()), plan.nodes);
    all.resize(size_t(counted));
    floor = std::max(plan.dead, counted < plan.nodes ? -INFINITY : all.back());
    double total = 0;
    for (const float x : all) total += fixed_exp(double(x));
    const double last = gain;
    gain = total - sum;
    sum += gain;
    if (level == plan.depth) return t;
    const int ran = int(t.ran.size()),
              most = std::min({plan.branch, plan.rows, (511 - ran + 1) / 2, int(found.size())});
    frontier = 0;
    double ahead = 0;
    while (frontier < most && found[size_t(frontier)].score > floor)
      ahead += fixed_exp(double(found[size_t(frontier++)].score));
    const double cost = plan.level_cost;
    if (frontier == 0 || ahead <= cost) return t;
    if (plan.while_it_pays) {
      const bool goes_on = !plan.with_costs || cost <= 0 ? gain > double(plan.threshold)
                                                         : std::min(ahead, gain * std::min(1.0, gain / last)) *
                                                                   (cost * level + double(plan.verify_cost[counted])) >
                                                               cost * (1 + sum);
      if (!goes_on) return t;
    }
    std::vector<std::vector<uint64_t>> next;
    rows.clear(), scores.clear();
    for (int i = 0; i < frontier; ++i) {
      const Node& n = found[size_t(i)];
      std::vector<uint64_t> own = level == 1 ? std::vector<uint64_t>(kAncestorWords) : bits[size_t(n.row)];
      own[size_t(ran + i) / 64] |= uint64_t(1) << ((ran + i) % 64);
      rows.push_back(looks(n.token, plan.positions[level - 1],
                           {plan.slot, plan.history, plan.history + ran + i, plan.history + level - 1}, own.data(),
                           {0, frontier, plan.slot, plan.history}, seed));
      next.push_back(own), scores.push_back(n.score), t.ran.push_back(first + i);
    }
    bits = next;
    ++t.passes;
  }
}

struct Loop {
  cudaStream_t stream;
  Pass pass{};
  uint64_t* seed;
  TreeGrowthPlan* plan;
  TreeGrowthResult* result;
  bool sampled;
  int rows;
  cudaGraphExec_t exec = nullptr;  // null: kernels are launched one by one

  template <class T>
  static T* take(size_t count) {
    void* p = nullptr;
    check(cudaMalloc(&p, count * sizeof(T)), "memory");
    check(cudaMemset(p, 0xee, count * sizeof(T)), "memory");
    return static_cast<T*>(p);
  }
  Loop(int most, int each, bool odd, bool samples, bool graphs = true) : sampled(samples), rows(most) {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    void* host = nullptr;
    check(cudaHostAlloc(&host, sizeof(TreeGrowthResult), cudaHostAllocMapped), "memory");
    result = static_cast<TreeGrowthResult*>(host);
    seed = take<uint64_t>(1), plan = take<TreeGrowthPlan>(1);
    GrowCall& g = pass.grow;
    g.plan = plan, g.state = take<TreeGrowthState>(1), g.result = result,
    g.candidates = take<Candidate>(size_t(rows) * size_t(each)), g.each = each;
    g.step = {take<Token>(16),
              take<int32_t>(16),
              take<int32_t>(16),
              take<RowInfo>(16),
              take<uint64_t>(16 * kAncestorWords),
              take<RowTile>(1),
              rows};
    pass.seed = seed, pass.odd = odd;
    settle();
    g.in_loop = graphs;
    if (graphs) make_graph();
  }
  void make_graph() {
    GrowCall& g = pass.grow;
    cudaGraph_t graph, same;
    check(cudaGraphCreate(&graph, 0), "graph");
    check(cudaGraphConditionalHandleCreate(&g.loop, graph, 0, cudaGraphCondAssignDefault), "handle");
    check(cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed), "capture");
    g.begins = true;
    launch_level(1);
    cudaStreamCaptureStatus status;
    cudaGraph_t recorded;
    const cudaGraphNode_t* nodes;
    size_t count;
    check(cudaStreamGetCaptureInfo(stream, &status, nullptr, &recorded, &nodes, nullptr, &count), "capture");
    cudaGraphNodeParams params{};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = g.loop, params.conditional.type = cudaGraphCondTypeWhile, params.conditional.size = 1;
    cudaGraphNode_t node;
    check(cudaGraphAddNode(&node, recorded, nodes, nullptr, count, &params), "loop");
    check(cudaStreamUpdateCaptureDependencies(stream, &node, nullptr, 1, cudaStreamSetCaptureDependencies), "loop");
    check(cudaStreamEndCapture(stream, &same), "capture");
    check(cudaStreamBeginCaptureToGraph(stream, params.conditional.phGraph_out[0], nullptr, nullptr, 0,
                                        cudaStreamCaptureModeRelaxed),
          "capture");
    g.begins = false;
    launch_level(rows);
    check(cudaStreamEndCapture(stream, &same), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "loop");
    cudaGraphDestroy(graph);
  }
  void launch_level(int count) {
    launch(pass_kernel, unsigned(count), 128, 0, stream, pass);
    if (sampled) reweigh_candidates(pass.grow, count, stream);
    grow_level(pass.grow, stream);
  }
  void run(const TreeGrowthPlan& p, uint64_t s) {
    std::memset(static_cast<void*>(result), 0xcd, sizeof(TreeGrowthResult));
    check(cudaMemcpy(plan, &p, sizeof p, cudaMemcpyHostToDevice), "plan");
    check(cudaMemcpy(seed, &s, sizeof s, cudaMemcpyHostToDevice), "seed");
    settle();
    result->size = -1;
    if (exec) check(cudaGraphLaunch(exec, stream), "launch");
    for (bool begins = true; !exec && *const_cast<volatile int32_t*>(&result->size) == -1; begins = false) {
      pass.grow.begins = begins;
      launch_level(begins ? 1 : rows);
      check(cudaStreamSynchronize(stream), "wait");
    }
    check(cudaStreamSynchronize(stream), "wait");
  }
};

std::string difference(const TreeGrowthResult& found, const Tree& want) {
  const auto say = [](const char* what, int at, double a, double b) {
    char text[120];
    std::snprintf(text, sizeof text, "%s %d: %.9g, expected %.9g", what, at, a, b);
    return std::string(text);
  };
  if (found.size != int(want.nodes.size())) return say("size", 0, found.size, double(want.nodes.size()));
  if (found.passes != want.passes) return say("passes", 0, found.passes, want.passes);
  if (found.ran != int(want.ran.size())) return say("ran", 0, found.ran, double(want.ran.size()));
  for (int n = 1; n < found.size; ++n) {
    const Node& w = want.nodes[size_t(n)];
    const LevelNode& f = found.node[n];
    if (f.token != w.token) return say("token of", n, f.token, w.token);
    if (f.parent != w.parent) return say("parent of", n, f.parent, w.parent);
    if (std::memcmp(&f.score, &w.score, 4) != 0) return say("score of", n, f.score, w.score);
  }
  for (int i = 0; i < found.ran; ++i)
    if (found.order[i] != want.ran[size_t(i)]) return say("order", i, found.order[i], want.ran[size_t(i)]);
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  const bool few = argc > 1 && std::strcmp(argv[1], "few") == 0;
  int failures = 0, trees = 0, passes = 0, largest = 0;
  std::mt19937 random(1);
  const auto upto = [&](int n) { return int(random() % unsigned(n)); };
  for (const auto& [rows, each] : {std::pair{1, 4}, {4, 7}, {8, 10}, {8, 50}, {16, 10}, {16, 50}, {16, 128}}) {
    for (const bool odd : {false, true}) {
      for (const bool sampled : {false, true}) {
        Loop loop(rows, each, odd && !sampled, sampled, !few);
        for (int i = 0; i < (few ? 2 : 12); ++i) {
          TreeGrowthPlan p{};
          p.rows = 1 + upto(rows), p.branch = sampled ? 1 + upto(each) : each;
          p.depth = 1 + upto(std::min(14, 512 / p.rows));
          p.nodes = i % 4 == 0 ? 511 : 1 + upto(60);
          p.dead = i % 3 == 0 ? -INFINITY : -float(1 + upto(9));
          p.while_it_pays = i % 2, p.with_costs = i % 5 != 0,
          p.level_cost = p.with_costs ? 0.002f * float(upto(20)) : 0, p.threshold = 0.001f;
          p.slot = upto(4), p.history = upto(5000);
          p.top_k = upto(2) * 20, p.noise = 1, p.temperature = 0.8f, p.top_p = i % 2 ? 0.9f : 1.0f,
          p.least = i % 3 == 0 ? -3.0 : 0.0;
          p.seed = random(), p.position = random();
          for (int d = 0; d < kLevelDepth; ++d) p.positions[d] = p.history + d + upto(3);
          for (int n = 0; n <= kLevelNodes; ++n) p.verify_cost[n] = 1 + 0.003f * float(n);
          const uint64_t seed = random();
          loop.run(p, seed);
          const Tree want = expected(p, each, seed, odd && !sampled, sampled);
          ++trees, passes += want.passes, largest = std::max(largest, int(want.nodes.size()));
          const std::string wrong = difference(*loop.result, want);
          if (!wrong.empty() && ++failures <= 8)
            std::printf("WRONG rows %d of %d, %d of %d candidates, nodes %d, depth %d%s%s: %s\n", p.rows, rows,
                        p.branch, each, p.nodes, p.depth, odd ? ", odd" : "", sampled ? ", sampled" : "",
                        wrong.c_str());
        }
      }
    }
  }
  std::printf("%d trees, %d passes, up to %d nodes: %d are wrong\n", trees, passes, largest, failures);
  for (const bool sampled : {false, true}) {
    if (few) break;
    for (const auto& [rows, each] : {std::pair{8, 10}, {16, 10}, {8, 50}, {16, 50}}) {
      Loop loop(rows, each, false, sampled);
      TreeGrowthPlan p{};
      p.rows = rows, p.branch = each, p.nodes = 59, p.dead = -INFINITY, p.temperature = 1, p.top_p = 1;
      double us[2];
      int ran[2];
      for (int deep = 0; deep < 2; ++deep) {
        p.depth = deep ? 30 : 2;
        loop.run(p, 5);
        ran[deep] = loop.result->passes;
        cudaEvent_t a, b;
        cudaEventCreate(&a), cudaEventCreate(&b);
        std::vector<float> times;
        for (int i = 0; i < 20; ++i) {
          float ms = 0;
          cudaEventRecord(a, loop.stream), cudaGraphLaunch(loop.exec, loop.stream), cudaEventRecord(b, loop.stream);
          check(cudaEventSynchronize(b), "wait");
          cudaEventElapsedTime(&ms, a, b);
          times.push_back(ms * 1000);
        }
        std::sort(times.begin(), times.end());
        us[deep] = times[10];
      }
      std::printf("%2d rows, %2d candidates%s: %.1f us with %d passes, %.1f with %d: %.2f a pass\n", rows, each,
                  sampled ? ", sampled" : "", us[0], ran[0], us[1], ran[1],
                  ran[1] > ran[0] ? (us[1] - us[0]) / (ran[1] - ran[0]) : 0.0);
    }
  }
  return failures != 0;
}
