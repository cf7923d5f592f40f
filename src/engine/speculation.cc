#include "engine/speculation.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "engine/session_origin.h"
#include "engine/startup_cache.h"
#include "speculative/draft/registry.h"

namespace sx {
namespace {

constexpr double kMeasureMs = 400;   // time that may be spent on costs when an engine opens
constexpr int kSweeps = 5, kMostMeasured = 64;
constexpr int kFarHistory = 2048;

// A draft must mean the same by its tokens. Sizes may differ by padding: tokens only one side has are never drafted. Drafts are
// often published without their tokenizer; then the number of tokens must be the same.
void check_vocabulary(const Tokenizer& target, int target_vocab, const ModelFile& file) {
  const TokenizerData& data = file.tokenizer();
  if (data.empty()) {
    if (file.config().vocab != target_vocab)
      fail("draft model '{}' has no tokenizer and {} tokens, the target has {}: it cannot be its draft", file.path(), file.config().vocab,
           target_vocab);
    return;
  }
  const auto own = Tokenizer::create(data);
  const int common = std::min(target.size(), own->size());
  int different = 0, first = -1;
  for (Token t = 0; t < common; ++t)
    if (target.printable(t) != own->printable(t) && ++different == 1) first = t;
  if (different > 0)
    fail("draft model '{}': its vocabulary is not the target's: {} of the {} common tokens differ, the first is {} ('{}' in the "
         "target, '{}' in the draft); use a draft of the same model family", file.path(), different, common, first,
         target.printable(first), own->printable(first));
  if (std::abs(target.size() - own->size()) > common / 8)
    fail("draft model '{}': its vocabulary has {} tokens, the target's {}: too different to be padding", file.path(), own->size(),
         target.size());
}

// Opens the draft model that the configuration names, if it is a model of its own. An earlier start may have compared the vocabularies.
std::shared_ptr<const ModelFile> open_draft_model(const SpecConfig& config, const SpeculationParts& parts, StartupCache& cached) {
  if (!config.needs_model() || parts.head) return nullptr;
  auto file = ModelFile::open(config.draft_model);
  if (const std::string key = build_key(parts.model, config.draft_model); !cached.known("vocabulary", key)) {
    ++cached.work.compared;
    check_vocabulary(*parts.tokenizer, parts.target->config().vocab, *file);
    cached.keep("vocabulary", key, true);
  }
  return file;
}

}  // namespace

SpecConfig configured(const SpecOptions& options) {
  SpecConfig config = options.json.empty() ? preset_config(options.preset) : config_from_json(options.json);
  if (!options.draft_model.empty()) apply_setting(config, "draft-model", options.draft_model);
  for (const auto& [name, value] : options.settings) apply_setting(config, name, value);
  return config;
}

SpecConfig resolve(const SpecOptions& options) {
  SpecConfig config = configured(options);
  check_config(config);
  return config;
}

SpecRule spec_rule(const SpecOptions& options) {
  const SpecConfig config = configured(options);
  SpecRule rule{setting_value(config, "accept"), SpecPromise::kDistribution};
  if (!config.on() || config.accept.kind == AcceptKind::kMatch) rule.promise = SpecPromise::kBytes;
  else if (config.accept.kind == AcceptKind::kTypical || config.accept.kind == AcceptKind::kMargin) rule.promise = SpecPromise::kNothing;
  return rule;
}

int tree_nodes(const SpecConfig& config) { return config.on() ? std::min(config.tree.nodes, kMaxTreeNodes - 1) + 1 : 1; }

Speculation::Speculation(const SpecConfig& config, const SpeculationParts& parts)
    : name_(parts.name), config_(config), cost_model_(*parts.cost_model) {
  nodes_ = tree_nodes(config) - 1;
  depth_ = config.on() ? std::min(config.tree.depth, nodes_) : 0;
  acceptance_ = make_acceptance(config.accept, *parts.backend, {parts.target->config().vocab, nodes_ + 1, std::max(1, depth_)});
  plain_ = make_acceptance({}, *parts.backend, {parts.target->config().vocab, 1, 1});
  int capacity = nodes_ + 1;
  if (config.on()) {
    make_drafter(parts);
    if (config.drafter != DrafterKind::kNgram && config.drafter != DrafterKind::kSuffix)
      capacity = std::max(capacity, make_tree_policy(config.tree)->capacity() + nodes_);
  }
  for (int i = 0; i < parts.slots; ++i) {
    trees_.push_back(std::make_unique<TokenTree>(capacity));
    if (config.on() && acceptance_->draws() != DrawMode::kBest)
      distributions_.push_back(std::make_unique<DraftProbs>(nodes_ + 1, parts.target->config().vocab));
  }
  // Cutting a tree by what was drafted would bias rules that rely on how it was drawn.
  wants_costs_ = config.on() && config.cost_model && acceptance_->draws() == DrawMode::kBest;
  planner_ = std::make_unique<DraftPlanner>(cost_model_, DraftKind{.nodes = nodes_,
                                                                   .depth = depth_,
                                                                   .runs_model = runs_model(),
                                                                   .has_index = has_index(),
                                                                   .uses_costs = wants_costs_});
}

Speculation::~Speculation() = default;

void Speculation::make_drafter(const SpeculationParts& parts) {
  StartupCache nothing({});
  StartupCache& cached = parts.cache ? *parts.cache : nothing;
  DraftContext context;
  context.source.kind = config_.drafter, context.source.name = config_.drafter_name, context.source.head = parts.head;
  context.source.model = open_draft_model(config_, parts, cached);
  context.config = &config_, context.tree = config_.tree, context.cache = config_.cache;
  context.draws = acceptance_->draws();
  context.nodes = nodes_;
  // Nodes of a chain's last level need not be guessed.
  context.ahead = config_.inner == DrafterKind::kNone ? 0 : std::clamp(nodes_ - 1, 1, config_.inner_nodes);
  context.backend = parts.backend, context.target = parts.target, context.kv = parts.kv, context.tokenizer = parts.tokenizer;
  context.slots = parts.slots, context.context = parts.context, context.chunk = parts.chunk;
  context.progress = parts.progress;
  if (const auto& model = context.source.model) {
    draft_fingerprint_ = model_fingerprint(*model) + " ";  // before its pages are given back
    context.check_weights = !parts.sizes_only && !cached.known("finite", build_key(config_.draft_model));
  }
  drafter_ = sx::make_drafter(context);
  draft_fingerprint_ += drafter_->fingerprint();
  if (context.check_weights) ++cached.work.scanned, cached.keep("finite", build_key(config_.draft_model), true);
}

std::shared_ptr<const HeadFile> open_head(SpecConfig& config, const ModelConfig& target) {
  if (!config.needs_model() || !is_head_folder(config.draft_model)) return nullptr;
  if (config.inner != DrafterKind::kNone)
    fail("draft '{}' is a head, and speculation setting inner is {}: a drafter inside another needs a draft model of its own, or set inner to none",
         config.draft_model, setting_value(config, "inner"));
  auto head = HeadFile::open(config.draft_model, target);
  DraftSource source;
  source.kind = DrafterKind::kModel, source.head = head;
  if (const auto fit = find_drafter(source).fit) fit(config, *head);
  return head;
}

CostRange cost_range(const SpeculationParts& parts, int rows) {
  const int most = std::min({rows, parts.target->options().max_outputs, parts.target->options().max_rows, kMostMeasured});
  return {most, std::max(0, std::min(kFarHistory, parts.context - most))};
}

// Passes of 1, 2, 4, ... rows on an empty and on a filled cache, all of them again and again: the least of each is taken, so that a busy
// moment spoils one sweep of all rather than all of one.
void measure_costs(const SpeculationParts& parts, int rows) {
  const double start = now_ms();
  const auto [most, far] = cost_range(parts, rows);
  std::vector<Token> tokens(size_t(most), 0);
  std::vector<int32_t> positions(tokens.size()), outputs(tokens.size());
  const auto time = [&](int count, int history) {
    for (int i = 0; i < count; ++i) positions[size_t(i)] = history + i, outputs[size_t(i)] = i;
    const SeqRows seq{0, count, 0, history, nullptr, 0};
    const size_t n = size_t(count);
    const double before = now_ms();
    parts.target->forward({std::span(tokens).first(n), std::span(positions).first(n), std::span(&seq, 1), std::span(outputs).first(n)},
                          *parts.kv);
    parts.backend->wait();
    return now_ms() - before;
  };
  for (int count : CostModel::kRows)  // a backend may record the passes it meets first
    if (count == 1 || (parts.backend->traits().records_steps && count <= most)) time(count, 0), time(count, far);
  if (far > 0) {  // cells of their own, not pages of zeros
    std::vector<KvMove> moves;
    for (int i = 1; i < far; ++i) moves.push_back({0, i, 0});
    parts.backend->kv_move({parts.kv, parts.kv, 0, 0, moves});
  }
  std::array<double, CostModel::kRows.size()> near{}, behind{};
  const auto least = [](double& ms, double now) { ms = ms == 0 ? now : std::min(ms, now); };
  for (int sweep = 0; sweep < kSweeps; ++sweep)
    for (size_t i = 0; i < near.size() && CostModel::kRows[i] <= most; ++i) {
      const bool needed = sweep == 0 && i < 2;
      if (!needed && now_ms() - start > kMeasureMs) break;
      least(near[i], time(CostModel::kRows[i], 0));
      if (far > 0) least(behind[i], time(CostModel::kRows[i], far));
    }
  for (size_t i = 0; i < near.size(); ++i) {
    if (near[i] > 0) parts.cost_model->set(CostModel::kRows[i], 0, near[i]);
    if (behind[i] > 0) parts.cost_model->set(CostModel::kRows[i], far, behind[i]);
  }
}

}  // namespace sx
