// Attention as the engine calls it (attend() per layer, through the thread pool): rows 1..64 of one sequence against
// a history, trees, and tiles of a prompt. Reports µs per pass over all layers (the minimum of each layer over many
// passes, summed: robust on a busy machine), GB/s of K/V, GFLOP/s, and the ratio to one row. Arguments: [threads]
// [type] [isa] [heads kv_heads head_dim layers].
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/cpu/attention/attention.h"
#include "backend/cpu/kv/store.h"
#include "base/rng.h"

namespace {

using namespace sx;
using namespace sx::cpu;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Setup {
  int threads = 2, heads = 9, kv_heads = 3, dim = 64, layers = 30;
  DType type = DType::kBF16;
  Isa isa = default_isa();
};

class Bench {
 public:
  Bench(const Setup& setup, int capacity)
      : s_(setup),
        pool_(setup.threads),
        store_({setup.layers, setup.kv_heads, setup.dim, 1, capacity, setup.type}, setup.isa) {
    scratch_.reserve({512, 0, s_.heads, s_.kv_heads, s_.dim, capacity, 0}, s_.threads);
    q_.resize(static_cast<size_t>(512 * s_.heads * s_.dim));
    out_.resize(q_.size());
    uint64_t state = 1;
    const auto normal = [&] {
      double sum = 0;
      for (int j = 0; j < 4; ++j) sum += uniform_from(mix64(++state));
      return static_cast<float>((sum - 2) * 1.8 * 1.5);
    };
    for (auto& x : q_) x = normal();
    std::vector<float> noise(static_cast<size_t>(1 << 16));
    for (auto& x : noise) x = normal();
    for (int c = 0; c < capacity; ++c)
      for (int l = 0; l < s_.layers; ++l)
        for (int h = 0; h < s_.kv_heads; ++h) {
          const float* x = noise.data() + mix64(static_cast<uint64_t>((c * 64 + l) * 64 + h)) % (noise.size() - 512);
          store_key(store_.key_layout(), store_.keys(0, l, h, c / kBlock), c % kBlock, x);
          store_value(store_.value_layout(), store_.values(0, l, h, c / kBlock), c % kBlock, x + s_.dim);
        }
  }

  // Seconds of one pass over `layers` layers: the minimum of each layer, summed.
  double seconds(int rows, int history, int layers, const uint64_t* ancestors = nullptr, int words = 0,
                 double budget = 0.4) {
    const SeqRows seq{0, rows, 0, history, ancestors, words};
    std::vector<double> best(static_cast<size_t>(layers), 1e9);
    const double start = now();
    for (int pass = 0; pass < 3 || now() - start < budget; ++pass)
      for (int l = 0; l < layers; ++l) {
        const double t = now();
        attend({.out = out_.data(),
                .q = q_.data(),
                .q_stride = s_.heads * s_.dim,
                .shape = {s_.heads, s_.kv_heads, s_.dim},
                .scale = 0.125f,
                .kv = &store_,
                .layer = l,
                .seqs = {&seq, 1}},
               s_.isa, pool_, scratch_);
        best[static_cast<size_t>(l)] = std::min(best[static_cast<size_t>(l)], now() - t);
      }
    double sum = 0;
    for (double b : best) sum += b;
    return sum * s_.layers / layers;
  }

  size_t block_bytes() const { return store_.key_layout().bytes + store_.value_layout().bytes; }

  void decode(int context) {
    double one = 0;
    for (int rows : {1, 2, 3, 4, 6, 8, 16, 32, 64}) {
      const double t = seconds(rows, context - rows, s_.layers);
      if (rows == 1) one = t;
      const double bytes = double(s_.layers) * s_.kv_heads * context / kBlock * double(block_bytes());
      const double flop = double(s_.layers) * s_.heads * rows * context * 4 * s_.dim;
      std::printf("context %6d rows %3d: %9.0f us  %5.1f GB/s  %6.1f GFLOP/s  x%.2f of one row\n", context, rows,
                  t * 1e6, bytes / t * 1e-9, flop / t * 1e-9, t / one);
      std::fflush(stdout);
    }
  }

  // Trees of 64 nodes: 4 children per node, and one root with 63 leaves.
  void trees(int context) {
    for (int fan : {2, 4, 63}) {
      uint64_t bits[64];
      for (int i = 0; i < 64; ++i) bits[i] = (i ? bits[(i - 1) / fan] : 0) | uint64_t(1) << i;
      const double t = seconds(64, context - 64, s_.layers, bits, 1);
      std::printf("context %6d tree of 64, %2d children: %9.0f us\n", context, fan, t * 1e6);
    }
  }

  void prompt(int tokens) {
    double sum = 0, last = 0;
    for (int at = 0; at < tokens; at += 512) sum += last = seconds(512, at, 1, nullptr, 0, 0.05);
    double flop = 0;
    for (int p = tokens - 512; p < tokens; ++p) flop += double(s_.heads) * (p + 1) * 4 * s_.dim;
    std::printf("prompt  %6d tokens: %.3f s for %d layers; last chunk of 512 %8.0f us per layer, %6.1f GFLOP/s\n",
                tokens, sum, s_.layers, last / s_.layers * 1e6, flop * s_.layers / last * 1e-9);
    std::fflush(stdout);
  }

 private:
  Setup s_;
  ThreadPool pool_;
  CpuKvStore store_;
  AttentionScratch scratch_;
  std::vector<float> q_, out_;
};

}  // namespace

int main(int argc, char** argv) {
  Setup s;
  if (argc > 1) s.threads = std::atoi(argv[1]);
  if (argc > 2) s.type = dtype_from_name(argv[2]).value_or(s.type);
  if (argc > 3) s.isa = isa_from_name(argv[3]).value_or(s.isa);
  if (argc > 7)
    s.heads = std::atoi(argv[4]), s.kv_heads = std::atoi(argv[5]), s.dim = std::atoi(argv[6]),
    s.layers = std::atoi(argv[7]);
  const int longest = std::getenv("BENCH_CONTEXT") ? std::atoi(std::getenv("BENCH_CONTEXT")) : 32768;
  std::printf("%s %s, %d threads, %d layers of %d/%d heads of %d, span %d\n", isa_name(s.isa), dtype_name(s.type),
              s.threads, s.layers, s.heads, s.kv_heads, s.dim, kSpan);
  Bench bench(s, longest);
  for (int context : {512, 1024, 2048, 4096, 8192, 16384, 32768})
    if (context <= longest) bench.decode(context);
  for (int context : {1024, 8192})
    if (context <= longest) bench.trees(context);
  for (int tokens : {512, 4096, 8192})
    if (tokens <= longest) bench.prompt(tokens);
}
