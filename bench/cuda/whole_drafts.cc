#include "whole_drafts.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "speculative/cache/draft_cache.h"
#include "speculative/draft/eagle.h"
#include "speculative/draft/model.h"

namespace sx::bench {
namespace {

constexpr int kWarmUp = 5;

}  // namespace

DraftTime draft_time(const DraftBench& b, bool on_backend) {
  std::vector<Token> text(b.text.begin(), b.text.end());
  const int first = int(text.size()), rounds = b.repeats + kWarmUp, context = first + rounds + 1;
  TreeConfig tree;
  tree.kind = TreeKind::kEagle2, tree.topk = b.topk, tree.nodes = b.nodes, tree.depth = b.depth;
  CacheConfig config;  // all cells
  KvGeometry cells = b.draft ? b.draft->kv_geometry(1, 0, b.type) : b.head->kv_geometry(1, 0, b.type);
  cells.capacity = context + kMaxTreeNodes;
  const auto kv = b.backend->make_kv(cells);
  DraftCacheParts parts;
  parts.backend = b.backend, parts.work = kv.get(), parts.target = &b.target->config(), parts.target_kv = b.target_kv,
  parts.context = context;
  parts.draft = b.draft ? &b.draft->config() : &b.head->config().cell;
  parts.frequencies = b.draft ? b.draft->rope_frequencies() : b.head->rope_frequencies();
  DraftCache cache(config, parts);
  std::unique_ptr<Drafter> drafter;
  if (b.draft) {
    ModelDrafterOptions o;
    o.backend = b.backend, o.model = b.draft, o.cache = &cache, o.tree = tree, o.on_backend = on_backend,
    o.vocab = b.target->config().vocab;
    drafter = make_model_drafter(o);
  } else {
    EagleDrafterOptions o;
    o.backend = b.backend, o.head = b.head, o.cache = &cache, o.tree = tree, o.on_backend = on_backend;
    drafter = make_eagle_drafter(o);
  }
  const auto run_target = [&](int at, int rows) -> const StepOutputs& {
    std::vector<int32_t> positions;
    for (int i = 0; i < rows; ++i) positions.push_back(at + i);
    const SeqRows seq{0, rows, 0, at};
    return b.target->forward(
        {std::span(text).subspan(size_t(at), size_t(rows)), positions, {&seq, 1}, {}, rows > kMaxChain}, *b.target_kv);
  };
  drafter->open(0);
  const StepOutputs& read = run_target(0, first);
  if (drafter->reads_target()) drafter->prompt({0, 0, first, &read, text});
  while (!drafter->prefill(0, text)) {}
  text.push_back(1);
  const StepOutputs& outputs = run_target(first, 1);  // one state stands for all that follow
  TokenTree grown(make_tree_policy(tree)->capacity());
  const Sampling greedy;
  std::vector<double> times;
  DraftTime result{};
  for (int i = 0; i < rounds; ++i) {
    grown.reset(text.back());
    DraftTask task;
    task.text = text, task.sampling = &greedy, task.tree = &grown, task.limits.nodes = b.nodes,
    task.limits.depth = b.depth;
    b.backend->wait();
    const double start = now_ms();
    drafter->draft(std::span(&task, 1));
    b.backend->wait();
    if (i >= kWarmUp) times.push_back(now_ms() - start);
    result.nodes = grown.drafted(), result.levels = grown.max_depth();
    const int history = int(text.size()) - 1;
    text.push_back(Token(100 + i));
    const NodeId root = 0;
    const Outcome outcome{0, &grown, std::span(&root, 1), text.back(), &outputs, 0, history, text};
    drafter->observe(std::span(&outcome, 1));
  }
  std::sort(times.begin(), times.end());
  result.ms = times[times.size() / 2];
  return result;
}

}  // namespace sx::bench
