// Hybrid tree attention and the two ops of a retrieved draft cache, each as the engine calls them:
//   attend    trees of 1..64 nodes behind histories of 1K..32K cells, one layer of the default model's shape
//   kv_score  one query over the keys of one layer, in chunks of 32
//   gather    kv_move of 1,024 cells in chunks of 32, each turned to its new position, into a small store
// A call goes to the next layer each time, so that K and V come from as far away as they do in a model. Reported is the
// minimum of each layer over many passes, averaged over the layers: robust on a busy machine.
// Options: --json, --threads N, --type BF16, --longest CELLS, --layers N, --seconds S (per measurement).
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/cpu/attention/attention.h"
#include "backend/cpu/kv/score.h"
#include "backend/cpu/kv/store.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"

namespace {

using namespace sx;
using namespace sx::cpu;

constexpr int kHeads = 9, kKvHeads = 3, kDim = 64;  // of the default model
constexpr int kDraftLayers = 5, kDraftHeads = 2;    // of a small draft model
constexpr int kChunk = 32, kGathered = 1024, kChildren = 4;
constexpr int kRows[] = {1, 2, 4, 8, 16, 32, 64};
constexpr ScoreKind kKinds[] = {ScoreKind::kMass, ScoreKind::kPeak, ScoreKind::kLogit, ScoreKind::kBound};
constexpr const char* kKindNames[] = {"mass", "peak", "logit", "bound"};

struct Setup {
  int threads = 2, layers = 30, longest = 32768;
  double seconds = 0.3;
  DType type = DType::kBF16;
  bool json = false;
};

void fill(CpuKvStore& store, int cells, const std::vector<float>& noise) {
  const KvGeometry& g = store.geometry();
  for (int l = 0; l < g.layers; ++l)
    for (int h = 0; h < g.kv_heads; ++h)
      for (int c = 0; c < cells; ++c) {
        const float* x = noise.data() + mix64(static_cast<uint64_t>((c * 64 + l) * 64 + h)) % (noise.size() - 2 * kDim);
        store_key(store.key_layout(), store.keys(0, l, h, c / kBlock), c % kBlock, x);
        store_value(store.value_layout(), store.values(0, l, h, c / kBlock), c % kBlock, x + kDim);
      }
}

class Bench {
 public:
  explicit Bench(const Setup& setup)
      : s_(setup),
        pool_(setup.threads),
        store_({setup.layers, kKvHeads, kDim, 1, setup.longest + 64, setup.type}, isa_),
        draft_({kDraftLayers, kDraftHeads, kDim, 1, setup.longest, setup.type}, isa_),
        work_({kDraftLayers, kDraftHeads, kDim, 1, kGathered, setup.type}, isa_) {
    const StepLimits limits{64, 0, kHeads, kKvHeads, kDim, store_.geometry().capacity, 0};
    attention_.reserve(limits, pool_.size());
    scores_.reserve(limits);
    std::vector<float> noise(size_t{1} << 16);
    for (size_t i = 0; i < noise.size(); ++i) {  // near normal
      double sum = 0;
      for (uint64_t j = 0; j < 4; ++j) sum += uniform_from(mix64(4 * i + j));
      noise[i] = static_cast<float>((sum - 2) * 1.8);
    }
    fill(store_, setup.longest + 64, noise);
    fill(draft_, setup.longest, noise);
    q_.assign(noise.begin(), noise.begin() + 64 * kHeads * kDim);
    out_.resize(std::max(q_.size(), static_cast<size_t>(kHeads) * static_cast<size_t>(setup.longest)));
    for (int i = 0; i < kDim / 2; ++i) frequencies_.push_back(std::pow(1e5, -2.0 * i / kDim));
  }

  // Microseconds of attend() in one layer; the tree stands behind context - rows cells.
  double attend_us(int rows, int context) {
    uint64_t bits[64];
    for (int i = 0; i < rows; ++i) bits[i] = (i ? bits[(i - 1) / kChildren] : 0) | uint64_t{1} << i;
    const SeqRows seq{.rows = rows, .history = context - rows, .ancestors = bits, .words = 1};
    AttendArgs a{};
    a.out = out_.data(), a.q = q_.data(), a.q_stride = kHeads * kDim, a.shape = {kHeads, kKvHeads, kDim};
    a.scale = 0.125f, a.kv = &store_, a.seqs = {&seq, 1};
    return measure(s_.layers, [&](int layer) {
      a.layer = layer;
      attend(a, isa_, pool_, attention_);
    });
  }

  double score_us(int context, ScoreKind kind) {
    std::vector<int32_t> borders;
    for (int c = 0; c <= context; c += kChunk) borders.push_back(c);
    KvScoreArgs a{out_.data(), q_.data(), kHeads, kKvHeads, kDim, 0.125f, &store_, 0, 0, borders, kind};
    return measure(s_.layers, [&](int layer) {
      a.layer = layer;
      kv_score(a, isa_, pool_, scores_);
    });
  }

  // The chunks are spread evenly over the context.
  double gather_us(int context) {
    std::vector<KvMove> moves;
    const int chunks = kGathered / kChunk, all = context / kChunk;
    for (int i = 0; i < chunks; ++i)
      for (int j = 0; j < kChunk; ++j) {
        const int src = (i * all / chunks) * kChunk + j, dst = i * kChunk + j;
        moves.push_back({src, dst, dst - src - 1});  // never 0: every key is turned
      }
    KvMoveArgs a{};
    a.from = &draft_, a.to = &work_, a.moves = moves, a.frequencies = frequencies_.data(), a.dims = kDim;
    return measure(1, [&](int) { kv_move(a, isa_, pool_); });
  }

  std::string machine() const { return fmt::format("{}, {} threads", isa_name(isa_), pool_.size()); }
  double key_bytes(int context) const {
    return double(kKvHeads) * context / kBlock * static_cast<double>(store_.key_layout().bytes);
  }
  double value_bytes(int context) const {
    return double(kKvHeads) * context / kBlock * static_cast<double>(store_.value_layout().bytes);
  }
  static double gather_bytes(const CpuKvStore& s) {  // read and written
    return 2.0 * kDraftLayers * kDraftHeads * kGathered / kBlock *
           static_cast<double>(s.key_layout().bytes + s.value_layout().bytes);
  }
  const CpuKvStore& work() const { return work_; }

 private:
  template <class Body>
  double measure(int layers, Body body) const {
    std::vector<double> best(static_cast<size_t>(layers), 1e9);
    const double start = now_ms();
    for (int pass = 0; pass < 3 || now_ms() - start < s_.seconds * 1000; ++pass)
      for (int l = 0; l < layers; ++l) {
        const double t = now_ms();
        body(l);
        best[static_cast<size_t>(l)] = std::min(best[static_cast<size_t>(l)], now_ms() - t);
      }
    double sum = 0;
    for (double b : best) sum += b;
    return sum / layers * 1000;
  }

  Setup s_;
  Isa isa_ = default_isa();
  ThreadPool pool_;
  CpuKvStore store_, draft_, work_;
  AttentionScratch attention_;
  ScoreScratch scores_;
  std::vector<float> q_, out_;
  std::vector<double> frequencies_;
};

void table(const char* title, const std::vector<std::string>& head, const std::vector<int>& contexts,
           const std::function<std::string(size_t, size_t)>& cell) {
  fmt::print("\n{}\n{:>8}", title, "context");
  for (const std::string& h : head) fmt::print("{:>10}", h);
  for (size_t i = 0; i < contexts.size(); ++i) {
    fmt::print("\n{:>8}", contexts[i]);
    for (size_t j = 0; j < head.size(); ++j) fmt::print("{:>10}", cell(i, j));
  }
  fmt::print("\n");
}

void run(const Setup& s) {
  Bench bench(s);
  std::vector<int> contexts;
  for (int c = 1024; c <= s.longest; c *= 2) contexts.push_back(c);
  std::vector<std::vector<double>> attend, score;
  std::vector<double> gather;
  for (int context : contexts) {
    auto& row = attend.emplace_back();
    for (int rows : kRows) row.push_back(bench.attend_us(rows, context));
    auto& kinds = score.emplace_back();
    for (ScoreKind kind : kKinds) kinds.push_back(bench.score_us(context, kind));
    gather.push_back(bench.gather_us(context));
  }
  const auto attend_rate = [&](size_t i, size_t j) {
    return (bench.key_bytes(contexts[i]) + bench.value_bytes(contexts[i])) / attend[i][j] * 1e-3;
  };
  const auto score_rate = [&](size_t i, size_t j) { return bench.key_bytes(contexts[i]) / score[i][j] * 1e-3; };
  const double moved = Bench::gather_bytes(bench.work());

  if (s.json) {
    nlohmann::ordered_json all = {{"machine", bench.machine()},
                                  {"kv_type", dtype_name(s.type)},
                                  {"heads", kHeads},
                                  {"kv_heads", kKvHeads},
                                  {"head_dim", kDim},
                                  {"results", nlohmann::ordered_json::array()}};
    for (size_t i = 0; i < contexts.size(); ++i) {
      for (size_t j = 0; j < std::size(kRows); ++j)
        all["results"].push_back({{"op", "attend"},
                                  {"context", contexts[i]},
                                  {"rows", kRows[j]},
                                  {"us", attend[i][j]},
                                  {"gb_per_s", attend_rate(i, j)},
                                  {"ratio", attend[i][j] / attend[i][0]}});
      for (size_t j = 0; j < std::size(kKinds); ++j)
        all["results"].push_back({{"op", "kv_score"},
                                  {"context", contexts[i]},
                                  {"kind", kKindNames[j]},
                                  {"chunk", kChunk},
                                  {"us", score[i][j]},
                                  {"gb_per_s", score_rate(i, j)}});
      all["results"].push_back({{"op", "gather"},
                                {"context", contexts[i]},
                                {"cells", kGathered},
                                {"layers", kDraftLayers},
                                {"kv_heads", kDraftHeads},
                                {"us", gather[i]},
                                {"gb_per_s", moved / gather[i] * 1e-3}});
    }
    fmt::print("{}\n", all.dump(1));
    return;
  }
  fmt::print("{}, {} KV, one layer of {}/{} heads of {}, trees of {} children per node\n", bench.machine(),
             dtype_name(s.type), kHeads, kKvHeads, kDim, kChildren);
  std::vector<std::string> rows;
  for (int r : kRows) rows.push_back(fmt::format("{} row{}", r, r > 1 ? "s" : ""));
  table("attend, microseconds", rows, contexts,
        [&](size_t i, size_t j) { return fmt::format("{:.1f}", attend[i][j]); });
  table("attend, GB/s of K and V", rows, contexts,
        [&](size_t i, size_t j) { return fmt::format("{:.1f}", attend_rate(i, j)); });
  table("attend, ratio to one row", rows, contexts,
        [&](size_t i, size_t j) { return fmt::format("{:.2f}", attend[i][j] / attend[i][0]); });
  const std::vector<std::string> kinds(std::begin(kKindNames), std::end(kKindNames));
  table("kv_score in chunks of 32, microseconds", kinds, contexts,
        [&](size_t i, size_t j) { return fmt::format("{:.1f}", score[i][j]); });
  table("kv_score, GB/s of K", kinds, contexts,
        [&](size_t i, size_t j) { return fmt::format("{:.1f}", score_rate(i, j)); });
  table("gather of 1,024 cells, 5 layers of 2 heads of 64, keys turned", {"us", "GB/s"}, contexts,
        [&](size_t i, size_t j) { return fmt::format("{:.1f}", j == 0 ? gather[i] : moved / gather[i] * 1e-3); });
}

Setup parse(int argc, char** argv) {
  Setup s;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--json") {
      s.json = true;
      continue;
    }
    if (i + 1 == argc)
      fail("{}: expected --json, or --threads, --type, --longest, --layers or --seconds with a value", flag);
    const char* value = argv[++i];
    if (flag == "--threads") s.threads = std::atoi(value);
    else if (flag == "--longest") s.longest = std::atoi(value);
    else if (flag == "--layers") s.layers = std::atoi(value);
    else if (flag == "--seconds") s.seconds = std::atof(value);
    else if (flag == "--type" && dtype_from_name(value)) s.type = *dtype_from_name(value);
    else fail("{} {}: unknown", flag, value);
  }
  if (s.longest < kGathered || s.layers < 1) fail("--longest: at least {}; --layers: at least 1", kGathered);
  return s;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench_tree: {}\n", e.what());
    return 1;
  }
}
