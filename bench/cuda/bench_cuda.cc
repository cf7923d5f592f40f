// Steps of a target, of its drafts and the ops between them on the CUDA backend, each as the engine runs them:
//   prefill     a prompt in chunks; it also fills the store for what follows
//   decode      one row behind L cells; and with choose() behind it
//   verify      random trees of 2..64 rows behind L cells, all rows wanted
//   choose      the tokens of 1, 16 and 64 rows of logits
//   eagle, lm   one level of a draft behind a working cache of 1,024 cells, and with the candidates taken from it
//   draft       whole drafts behind 1,024 cells, with the host between the levels and without it
//   refresh     cross-model retrieval: scores of two target layers, the choice, the gathering of 1,024 cells
// Medians over single steps, each ended by Backend::wait; the bound is the bytes a step must read (weights and K/V) at
// the speed of a copy on the device.
//   bench_cuda --model FILE [--draft FILE] [--eagle FOLDER] [--lengths 1024,4096,16384] [--retrieval 16384,131072]
//              [--json OUT]
// Further options: --rows 2,4,8,16,32,64, --repeats N, --chunk ROWS, --prefill TOKENS (the rest of the longest is
// copied), --kv TYPE, --cpu (the CPU backend, to try the program).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "copy_speed.h"
#include "model/heads/eagle.h"
#include "model/model.h"
#include "speculative/cache/draft_cache.h"
#include "speculative/cache/retrieval_layers.h"
#include "whole_drafts.h"

namespace {

using namespace sx;
using Json = nlohmann::ordered_json;

constexpr int kMostRows = 64;     // of a tree
constexpr int kWorkCells = 1024;  // of a draft
constexpr int kCandidates = 64;   // per row, as the drafters take them
constexpr int kWarmUp = 5;

struct Args {
  std::string model, draft, eagle, json, kv;
  std::vector<int> lengths{1024, 4096, 16384}, retrieval{16384}, rows{2, 4, 8, 16, 32, 64};
  int repeats = 50, chunk = 2048, prefill = 0;
  bool cpu = false;
};

std::vector<int> numbers(std::string_view text, const std::string& option) {
  std::vector<int> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    int value = 0;
    const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, value);
    if (error != std::errc() || stop != text.data() + end || value < 1)
      fail("{}: '{}' is not a list of whole numbers", option, text);
    out.push_back(value);
    at = end + 1;
  }
  return out;
}

Args parse(int argc, char** argv) {
  Args args;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--cpu") {
      args.cpu = true;
      continue;
    }
    if (i + 1 == argc) fail("{}: not known, or its value is missing", option);
    const std::string value = argv[++i];
    if (option == "--model") args.model = value;
    else if (option == "--draft") args.draft = value;
    else if (option == "--eagle") args.eagle = value;
    else if (option == "--json") args.json = value;
    else if (option == "--kv") args.kv = value;
    else if (option == "--lengths") args.lengths = numbers(value, option);
    else if (option == "--retrieval") args.retrieval = numbers(value, option);
    else if (option == "--rows") args.rows = numbers(value, option);
    else if (option == "--repeats") args.repeats = numbers(value, option)[0];
    else if (option == "--chunk") args.chunk = numbers(value, option)[0];
    else if (option == "--prefill") args.prefill = numbers(value, option)[0];
    else fail("{}: not known", option);
  }
  if (args.model.empty()) fail("--model FILE is missing");
  for (int rows : args.rows)
    if (rows > kMostRows) fail("--rows: trees have at most {} rows", kMostRows);
  for (auto* list : {&args.lengths, &args.retrieval, &args.rows}) std::sort(list->begin(), list->end());
  return args;
}

// Median, ms. The body runs ops; each run ends when they are done.
template <class Body>
double measure(Backend& backend, int repeats, Body body) {
  for (int i = 0; i < kWarmUp; ++i) body();
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    backend.wait();
    const double start = now_ms();
    body();
    backend.wait();
    times.push_back(now_ms() - start);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// A tree behind a history: every node hangs below a random earlier one; most_depth 0: none does, as in a level of a
// draft.
struct Tree {
  std::vector<Token> tokens;
  std::vector<int32_t> positions, outputs;
  std::vector<uint64_t> ancestors;
  SeqRows seq;

  Tree(int rows, int history, int vocab, int most_depth) {
    std::vector<int> depth;
    for (int i = 0; i < rows; ++i) {
      uint64_t bits = uint64_t{1} << i;
      int level = 0;
      if (i > 0 && most_depth > 0) {
        auto parent = size_t(mix64(uint64_t(rows * kMostRows + i)) % uint64_t(i));
        if (depth[parent] + 1 > most_depth) parent = 0;
        bits |= ancestors[parent];
        level = depth[parent] + 1;
      }
      depth.push_back(level);
      ancestors.push_back(bits);
      tokens.push_back(Token(mix64(uint64_t(i + 77)) % uint64_t(vocab)));
      positions.push_back(history + level);
      outputs.push_back(i);
    }
    seq.rows = rows, seq.history = history, seq.ancestors = ancestors.data(), seq.words = 1;
  }
  StepInputs step() const { return {tokens, positions, {&seq, 1}, outputs}; }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;
};

size_t cell_bytes(const KvGeometry& g) {
  return size_t(g.layers) * size_t(g.kv_heads) *
         (dtype_bytes(g.type.keys, g.head_dim) + dtype_bytes(g.type.values, g.head_dim));
}

// Fills cells [filled, cells) with copies of those before, turned to their places.
void copy_on(Backend& backend, KvStore& kv, const ModelConfig& config, std::span<const double> frequencies, int filled,
             int cells) {
  std::vector<KvMove> moves;
  for (int at = filled; at < cells;) {
    const int count = std::min({kWorkCells, filled, cells - at});
    moves.clear();
    for (int i = 0; i < count; ++i) moves.push_back({i, at + i, at});
    backend.kv_move({&kv, &kv, 0, 0, moves, frequencies.data(), config.rope.dims, config.rope.style});
    backend.wait();
    at += count;
  }
}

class Bench {
 public:
  explicit Bench(const Args& args) : args_(args) {
    backend_ = args.cpu ? make_cpu_backend({}) : make_cuda_backend({});
    if (!args.json.empty()) json_.open(args.json);
    if (!args.json.empty() && !json_) fail("'{}' cannot be written", args.json);
    copy_ = copy_speed(args.cpu);
    auto file = ModelFile::open(args.model);
    std::shared_ptr<const HeadFile> head;
    if (!args.eagle.empty()) head = HeadFile::open(args.eagle, file->config());
    longest_ = std::max(args.lengths.back(), args.retrieval.back());
    ModelOptions options;
    options.max_outputs = kMostRows;
    options.max_rows = std::max(args.chunk, kMostRows);
    options.context = longest_ + kMostRows;
    if (head) options.taps = head->taps();
    options.taps.query = likely_retrieval_layers(file->config().layers);
    cache_.policy = &cache_policy("retrieval");
    cache_.layers = options.taps.query;
    cache_.budget = kWorkCells;
    const double start = now_ms();
    target_ = Model::load(file, *backend_, options);
    backend_->wait();
    const double load = now_ms() - start;
    type_ = backend_->default_kv_type();
    if (!args.kv.empty()) {
      const auto named = dtype_from_name(args.kv);
      if (!named) fail("--kv: type '{}' is not known", args.kv);
      type_ = *named;
    }
    kv_ = backend_->make_kv(target_->kv_geometry(1, longest_ + kMostRows, type_));
    if (!args.draft.empty()) {
      options = {};
      options.max_outputs = kMostRows;
      options.max_rows = std::max(args.chunk, kMostRows);
      options.context = longest_ + kMostRows;
      draft_ = Model::load(ModelFile::open(args.draft), *backend_, options);
    }
    if (head) {
      EagleOptions eagle;
      eagle.max_rows = std::max(args.chunk, kMostRows);
      eagle.context = longest_ + kMostRows;
      eagle_ = EagleHead::load(head, *target_, *backend_, eagle);
    }
    for (int i = 0; i < longest_; ++i) text_.push_back(Token(mix64(uint64_t(i)) % uint64_t(target_->config().vocab)));
    const ModelConfig& c = target_->config();
    report({{"what", "set-up"},
            {"device", backend_->name()},
            {"model", args.model},
            {"layers", c.layers},
            {"width", c.width},
            {"kv_type", dtype_name(type_)},
            {"weight_bytes", target_->weight_bytes()},
            {"cell_bytes", cell_bytes(kv_->geometry())},
            {"copy_gb_s", copy_ / 1e9},
            {"load_ms", load}},
           fmt::format("{}\n{}: {} layers of width {}, {:.2f} GB of weights, {:.1f} KB per cell ({}), loaded in {:.1f} "
                       "s\ncopy on the device: "
                       "{:.0f} GB/s (read and written)\n",
                       backend_->name(), args.model, c.layers, c.width, double(target_->weight_bytes()) / 1e9,
                       double(cell_bytes(kv_->geometry())) / 1e3, dtype_name(type_), load / 1000, copy_ / 1e9));
  }

  void run() {
    prefill();
    for (int length : args_.lengths) steps(length);
    choose();
    if (eagle_) eagle_levels(), drafts(nullptr, eagle_.get());
    if (draft_) draft_levels(), drafts(draft_.get(), nullptr);
    const ModelConfig* config = draft_ ? &draft_->config() : eagle_ ? &eagle_->config().cell : nullptr;
    for (int length : args_.retrieval)
      if (config) refresh(length, *config);
  }

 private:
  void report(const Json& line, const std::string& text) {
    if (json_.is_open()) json_ << line.dump() << std::endl;
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }

  // Time of reading these bytes at the speed of a copy, ms.
  double bound(double bytes) const { return copy_ > 0 ? bytes / copy_ * 1000 : 0; }

  const StepOutputs& chunk(int first, int rows) {
    std::vector<int32_t> positions(static_cast<size_t>(rows));
    for (int i = 0; i < rows; ++i) positions[size_t(i)] = first + i;
    SeqRows seq;
    seq.rows = rows, seq.history = first;
    return target_->forward({std::span(text_).subspan(size_t(first), size_t(rows)), positions, {&seq, 1}, {}, true},
                            *kv_);
  }

  // One pass over the longest prompt with the clock read at every length, where chunks are cut.
  void prefill() {
    const int most = args_.prefill > 0 ? std::min(args_.prefill, args_.lengths.back()) : args_.lengths.back();
    std::vector<int> stops;
    for (int length : args_.lengths)
      if (length < most) stops.push_back(length);
    stops.push_back(most);
    for (int i = 0; i < 2; ++i) chunk(0, std::min(args_.chunk, stops[0]));
    backend_->wait();
    double ms = 0;
    int at = 0;
    for (int stop : stops) {
      const double start = now_ms();
      while (at < stop) {
        const int rows = std::min(args_.chunk, stop - at);
        chunk(at, rows);
        at += rows;
      }
      backend_->wait();
      ms += now_ms() - start;
      // GEMMs alone: 2 operations per weight and token; attention comes on top.
      const double flops = 2.0 * double(stop) * parameters();
      report({{"what", "prefill"},
              {"length", stop},
              {"chunk", args_.chunk},
              {"ms", ms},
              {"tokens_per_s", stop / ms * 1000},
              {"linear_tflop_s", flops / ms / 1e9}},
             fmt::format("prefill {:>7}: {:9.1f} ms  {:8.0f} tok/s  {:6.1f} TFLOP/s in the matrices alone\n", stop, ms,
                         stop / ms * 1000, flops / ms / 1e9));
    }
    filled_ = most;
    const double start = now_ms();
    copy_on(*backend_, *kv_, target_->config(), target_->rope_frequencies(), filled_, longest_);
    if (longest_ > filled_)
      report({{"what", "copied"}, {"cells", longest_ - filled_}, {"ms", now_ms() - start}},
             fmt::format("cells {} to {} are copies: {:.1f} ms\n", filled_, longest_, now_ms() - start));
  }

  // Of the layers: those of the head are used for the last row only.
  double parameters() const {
    const ModelConfig& c = target_->config();
    const double q = double(c.heads) * c.head_dim, kv = double(c.kv_heads) * c.head_dim;
    return double(c.layers) * c.width * (2 * q + 2 * kv + 3.0 * c.ffn);
  }

  void steps(int length) {
    const ModelConfig& c = target_->config();
    const int history = length - 1;  // the row stands at the length
    const double bytes = double(target_->weight_bytes()) + double(cell_bytes(kv_->geometry())) * length;
    Token token = 0;
    const Sampling greedy;
    const Tree single(1, history, c.vocab, 0);
    const double one = measure(*backend_, args_.repeats, [&] { target_->forward(single.step(), *kv_); });
    const double chosen = measure(*backend_, args_.repeats, [&] {
      const float* logits = target_->forward(single.step(), *kv_).logits;
      const ChooseRow row{logits, uint64_t(length), &greedy, {}, {}};
      backend_->choose({&token, {&row, 1}, c.vocab});
    });
    const double share = 100 * bound(bytes) / one;
    report(
        {{"what", "decode"},
         {"length", length},
         {"ms", one},
         {"with_choose_ms", chosen},
         {"bytes", bytes},
         {"bound_ms", bound(bytes)},
         {"percent_of_bound", share}},
        fmt::format("decode  {:>7}: {:9.3f} ms  {:8.1f} tok/s  with choose {:.3f} ms  bound {:.3f} ms  {:.1f}% of it\n",
                    length, one, 1000 / one, chosen, bound(bytes), share));
    std::string line = fmt::format("verify  {:>7}:", length);
    Json ratios = Json::array();
    for (int rows : args_.rows) {
      const Tree tree(rows, history, c.vocab, backend_->max_depth() - 1);
      const double ms = measure(*backend_, args_.repeats, [&] { target_->forward(tree.step(), *kv_); });
      line += fmt::format("  {}: {:.3f} ms ({:.3f})", rows, ms, ms / one);
      ratios.push_back({{"rows", rows}, {"ms", ms}, {"ratio", ms / one}});
    }
    report({{"what", "verify"}, {"length", length}, {"one_row_ms", one}, {"trees", ratios}}, line + "\n");
  }

  void choose() {
    const ModelConfig& c = target_->config();
    const Tree tree(kMostRows, args_.lengths[0] - 1, c.vocab, backend_->max_depth() - 1);
    const float* logits = target_->forward(tree.step(), *kv_).logits;
    Sampling greedy, sampled;
    sampled.temperature = 0.8f, sampled.top_k = 40, sampled.top_p = 0.95f, sampled.seed = 1;
    std::vector<Token> out(kMostRows);
    for (int rows : {1, 16, kMostRows}) {
      double ms[2];
      for (int kind = 0; kind < 2; ++kind) {
        std::vector<ChooseRow> asked;
        for (int i = 0; i < rows; ++i)
          asked.push_back({logits + size_t(i) * size_t(c.vocab), uint64_t(i), kind == 0 ? &greedy : &sampled, {}, {}});
        ms[kind] = measure(*backend_, args_.repeats, [&] { backend_->choose({out.data(), asked, c.vocab}); });
      }
      report(
          {{"what", "choose"}, {"rows", rows}, {"greedy_ms", ms[0]}, {"sampled_ms", ms[1]}},
          fmt::format("choose  {:>7} rows: greedy {:.3f} ms, sampled (top-k, top-p) {:.3f} ms\n", rows, ms[0], ms[1]));
    }
  }

  void level_line(const char* what, int rows, double ms, double with_candidates, size_t weights,
                  const KvGeometry& cells) {
    const double bytes = double(weights) + double(cell_bytes(cells)) * kWorkCells;
    report({{"what", what},
            {"rows", rows},
            {"ms", ms},
            {"with_candidates_ms", with_candidates},
            {"bytes", bytes},
            {"bound_ms", bound(bytes)},
            {"percent_of_bound", 100 * bound(bytes) / ms}},
           fmt::format("{:<7} {:>7} rows: {:.3f} ms, with candidates {:.3f} ms, bound {:.3f} ms, {:.1f}% of it\n", what,
                       rows, ms, with_candidates, bound(bytes), 100 * bound(bytes) / ms));
  }

  // The head runs behind the states of a prompt; a level is fed the states of the one before.
  void eagle_levels() {
    const ModelConfig& c = eagle_->config().cell;
    auto kv = backend_->make_kv(eagle_->kv_geometry(1, kWorkCells + kMostRows, type_));
    const int piece = std::min({args_.chunk, args_.lengths[0], kWorkCells});
    std::vector<int32_t> which(static_cast<size_t>(piece)), positions(which.size());
    for (int i = 0; i < piece; ++i) which[size_t(i)] = positions[size_t(i)] = i;
    float* states = backend_->allocate(size_t(backend_->row_capacity(args_.chunk)) * size_t(c.width), "states");
    eagle_->fuse(chunk(0, piece).hidden, which, states);
    SeqRows seq;
    seq.rows = piece;
    EagleStep prompt;
    prompt.tokens = std::span(text_).subspan(0, size_t(piece)), prompt.positions = positions, prompt.seqs = {&seq, 1};
    prompt.prompt = true, prompt.states = states;
    eagle_->forward(prompt, *kv);
    copy_on(*backend_, *kv, c, eagle_->rope_frequencies(), piece, kWorkCells);
    std::vector<Candidate> candidates(size_t(kMostRows) * kCandidates);
    for (int rows : {1, 8, 10}) {
      const Tree tree(rows, kWorkCells, target_->config().vocab, 0);
      EagleStep step;
      static_cast<StepInputs&>(step) = tree.step();
      step.states = states;
      const int vocab = eagle_->config().draft_vocab;
      const double ms = measure(*backend_, args_.repeats, [&] { eagle_->forward(step, *kv); });
      const double all = measure(*backend_, args_.repeats, [&] {
        const float* logits = eagle_->forward(step, *kv).logits;
        backend_->top_k({candidates.data(), logits, rows, vocab, std::min(kCandidates, vocab)});
      });
      level_line("eagle", rows, ms, all, eagle_->weight_bytes(), kv->geometry());
    }
  }

  void drafts(Model* draft, EagleHead* head) {
    for (int topk : {8, 10}) {
      const int cells = std::min({kWorkCells, args_.chunk, args_.lengths[0]});
      const bench::DraftBench b{
          backend_.get(), target_.get(), kv_.get(), draft,        head, type_, std::span(text_).first(size_t(cells)),
          topk,           511,           8,         args_.repeats};
      const bench::DraftTime host = draft_time(b, false), alone = draft_time(b, true);
      report(
          {{"what", "draft"},
           {"drafter", head ? "eagle" : "lm"},
           {"rows", topk},
           {"levels", alone.levels},
           {"host_ms", host.ms},
           {"ms", alone.ms}},
          fmt::format(
              "draft   {:>7} rows: {} of {} levels, {} nodes: with the host between levels {:.3f} ms, without {:.3f} ms\n",
              topk, head ? "eagle" : "lm", alone.levels, alone.nodes, host.ms, alone.ms));
    }
  }

  void draft_levels() {
    const ModelConfig& c = draft_->config();
    auto kv = backend_->make_kv(draft_->kv_geometry(1, kWorkCells + kMostRows, type_));
    fill_draft(*kv, kWorkCells);
    std::vector<Candidate> candidates(size_t(kMostRows) * kCandidates);
    std::vector<uint8_t> behind(size_t(c.layers),
                                1);  // with these left out it is a model of two layers, as the published 68M one is
    std::fill_n(behind.begin(), std::min(2, c.layers), uint8_t(0));
    for (bool two : {false, true}) {
      const LayerPlan plan = two ? LayerPlan{behind.data(), behind.data(), 0} : LayerPlan{};
      for (int rows : {1, 8, 10}) {
        const Tree tree(rows, kWorkCells, c.vocab, 0);
        const double ms = measure(*backend_, args_.repeats, [&] { draft_->forward(tree.step(), *kv, plan); });
        const double all = measure(*backend_, args_.repeats, [&] {
          const float* logits = draft_->forward(tree.step(), *kv, plan).logits;
          backend_->top_k({candidates.data(), logits, rows, c.vocab, std::min(kCandidates, c.vocab)});
        });
        const size_t layers = draft_->weight_bytes() - draft_->head().bytes();
        const size_t left_out = two ? layers / size_t(c.layers) * size_t(std::max(0, c.layers - 2)) : 0;
        level_line(two ? "lm 2" : "lm", rows, ms, all, draft_->weight_bytes() - left_out, kv->geometry());
      }
    }
  }

  void fill_draft(KvStore& kv, int cells) {
    const int piece = std::min({args_.chunk, kWorkCells, int(text_.size()), cells});
    std::vector<int32_t> positions;
    for (int i = 0; i < piece; ++i) positions.push_back(i);
    SeqRows seq;
    seq.rows = piece;
    draft_->forward({std::span(text_).subspan(0, size_t(piece)), positions, {&seq, 1}, {}, true}, kv);
    copy_on(*backend_, kv, draft_->config(), draft_->rope_frequencies(), piece, cells);
  }

  // As a round does it: `refresh` finds an empty working cache, `again` one that holds the very cells that are chosen.
  void refresh(int length, const ModelConfig& config) {
    DraftCacheParts parts;
    KvGeometry cells = draft_ ? draft_->kv_geometry(1, 0, type_) : eagle_->kv_geometry(1, 0, type_);
    cells.capacity = DraftCache::work_cells(cache_, longest_) + kMostRows;
    auto work = backend_->make_kv(cells);
    cells.capacity = length + kMostRows;
    auto full = backend_->make_kv(cells);
    if (draft_) fill_draft(*full, length);
    parts.backend = backend_.get(), parts.draft = &config, parts.work = work.get(), parts.full = full.get();
    parts.frequencies = draft_ ? draft_->rope_frequencies() : eagle_->rope_frequencies();
    parts.target = &target_->config(), parts.target_kv = kv_.get(), parts.context = length;
    DraftCache cache(cache_, parts);
    const Tree last(1, length - 1, target_->config().vocab, 0);
    const auto text = std::span<const Token>(text_).first(size_t(length));
    cache.prompted(0, length);
    cache.note_target(0, target_->forward(last.step(), *kv_).query, 0, length);
    const double ms = measure(*backend_, args_.repeats, [&] {
      cache.truncate(0, length - 1, length);
      cache.prompted(0, 1);
      cache.prepare(0, text, 1);
    });
    if (cache.work(0) != std::min(length, kWorkCells)) fail("refresh: {} cells were gathered", cache.work(0));
    const double again = measure(*backend_, args_.repeats, [&] {
      cache.prompted(0, 0);
      cache.prepare(0, text, 1);
    });
    const double scored =
        double(cache_.layers.size()) * double(cell_bytes(kv_->geometry())) / 2 / target_->config().layers * length;
    report({{"what", "refresh"},
            {"length", length},
            {"ms", ms},
            {"same_cells_ms", again},
            {"key_bytes", scored},
            {"bound_ms", bound(scored)}},
           fmt::format("refresh {:>7}: {:.3f} ms, of it scores and choice {:.3f} ms; reading the keys {:.3f} ms\n",
                       length, ms, again, bound(scored)));
  }

  Args args_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> target_, draft_;
  std::unique_ptr<EagleHead> eagle_;
  std::unique_ptr<KvStore> kv_;
  DType type_ = DType::kF32;
  CacheConfig cache_;
  std::vector<Token> text_;
  std::ofstream json_;
  int longest_ = 0, filled_ = 0;
  double copy_ = 0;
};

}  // namespace

int main(int argc, char** argv) try {
  Bench(parse(argc, argv)).run();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_cuda: %s\n", error.what());
  return 1;
}
