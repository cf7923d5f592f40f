// What looking a text up in itself costs: indexing (also anew, after a truncation), drafting and learning from a
// result, on a text whose tokens follow Zipf's distribution and which quotes itself. Time per item is time per token or
// per round.
//   bench_index [flags of Google Benchmark]
#include <benchmark/benchmark.h>

#include <cmath>
#include <random>

#include "speculative/draft/drafters.h"
#include "speculative/draft/suffix_automaton.h"

namespace {

using namespace sx;
using Text = std::vector<Token>;

Text make_text(size_t size) {
  std::mt19937 random(1);
  Text text;
  while (text.size() < size) {
    for (int i = 0; i < 40; ++i) text.push_back(Token(std::exp(double(random() % 10000) / 10000 * std::log(50000.0))));
    const size_t from = random() % text.size(), length = 5 + random() % 30;
    for (size_t i = 0; i < length; ++i) text.push_back(text[from + i]);
  }
  text.resize(size);
  return text;
}

void append(benchmark::State& state) {
  const Text text = make_text(size_t(state.range(0)));
  SuffixAutomaton automaton(int(text.size()));
  for (auto _ : state) {
    automaton.clear();
    for (Token token : text) automaton.append(token);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

std::unique_ptr<Drafter> make_drafter(bool suffix, int nodes, int context) {
  TreeConfig tree;
  tree.nodes = tree.depth = nodes;
  const IndexLimits limits{1, context, 50000};
  return suffix ? make_suffix_drafter({}, tree, limits) : make_ngram_drafter({}, tree, limits);
}

// A new prompt that shares all but the last token.
void reindex(benchmark::State& state, bool suffix) {
  const Text text = make_text(size_t(state.range(0)));
  const auto drafter = make_drafter(suffix, 16, int(text.size()));
  drafter->open(0);
  for (auto _ : state) {
    drafter->truncate(0, int(text.size()) - 1);
    while (!drafter->prefill(0, text)) {}
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

// Whole rounds (draft, observe) while the text grows over its last quarter.
void rounds(benchmark::State& state, bool suffix) {
  const Text text = make_text(size_t(state.range(0)));
  const auto drafter = make_drafter(suffix, int(state.range(1)), int(text.size()));
  TokenTree tree(int(state.range(1)) + 1);
  std::vector<NodeId> path;
  int64_t done = 0;
  drafter->open(0);
  for (auto _ : state) {
    state.PauseTiming();
    size_t at = text.size() / 4 * 3;
    drafter->truncate(0, 0);
    while (!drafter->prefill(0, std::span(text).first(at))) {}
    state.ResumeTiming();
    for (; at < text.size(); ++done) {
      tree.reset(text[at - 1]);
      DraftTask task;
      task.text = std::span(text).first(at), task.tree = &tree;
      task.limits.nodes = task.limits.depth = int(state.range(1));
      drafter->draft({&task, 1});
      path.assign(1, 0);
      for (NodeId c; at < text.size() && (c = tree.child(path.back(), text[at])) != kNoNode; ++at) path.push_back(c);
      const Outcome outcome{0, &tree, path, at < text.size() ? text[at] : kNoToken};
      drafter->observe({&outcome, 1});
      ++at;
    }
  }
  state.SetItemsProcessed(done);
}

BENCHMARK(append)->Arg(8192)->Arg(131072)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(reindex, suffix, true)->Arg(8192)->Arg(131072)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(reindex, ngram, false)->Arg(8192)->Arg(131072)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(rounds, suffix, true)
    ->Args({8192, 16})
    ->Args({8192, 64})
    ->Args({131072, 16})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(rounds, ngram, false)->Args({8192, 16})->Args({131072, 16})->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
