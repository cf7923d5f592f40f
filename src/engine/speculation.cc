#include "engine/speculation.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/session_origin.h"
#include "engine/startup_cache.h"
#include "speculative/cache/draft_cache.h"
#include "speculative/draft/registry.h"

namespace sx {
namespace {

// A draft must mean the same by its tokens. Sizes may differ by padding: tokens only one side has are never drafted.
// Drafts are often published without their tokenizer; then the number of tokens must be the same.
void check_vocabulary(const TokenCodec& target, int target_vocab, const ModelFile& file) {
  const TokenizerData& data = file.tokenizer();
  if (data.empty()) {
    if (file.config().vocab != target_vocab)
      fail("draft model '{}' has no tokenizer and {} tokens, the target has {}: it cannot be its draft", file.path(),
           file.config().vocab, target_vocab);
    return;
  }
  const auto own = TokenCodec::create(data);
  const int common = std::min(target.size(), own->size());
  int different = 0, first = -1;
  for (Token t = 0; t < common; ++t)
    if (target.printable(t) != own->printable(t) && ++different == 1) first = t;
  if (different > 0)
    fail(
        "draft model '{}': its vocabulary is not the target's: {} of the {} common tokens differ, the first is {} "
        "('{}' in the target, '{}' in the draft); use a draft of the same model family",
        file.path(), different, common, first, target.printable(first), own->printable(first));
  if (std::abs(target.size() - own->size()) > common / 8)
    fail("draft model '{}': its vocabulary has {} tokens, the target's {}: too different to be padding", file.path(),
         own->size(), target.size());
}

// Opens the draft model that the configuration names, if it is a model of its own. An earlier start may have compared
// the vocabularies.
std::shared_ptr<const ModelFile> open_draft_model(const SpecConfig& config, const SpeculationParts& parts,
                                                  StartupCache& cached) {
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
  else if (config.accept.kind == AcceptKind::kTypical || config.accept.kind == AcceptKind::kMargin)
    rule.promise = SpecPromise::kNothing;
  return rule;
}

int tree_nodes(const SpecConfig& config) {
  return config.on() ? std::min(config.tree.nodes, kMaxTreeNodes - 1) + 1 : 1;
}

TapSpec wanted_taps(const SpecConfig& config, const HeadFile* head, int layers) {
  TapSpec wanted = head ? head->taps() : TapSpec{};
  if (config.has_cache()) wanted.query = DraftCache::target_layers(config.cache, layers);
  return wanted;
}

Speculation::Speculation(const SpecConfig& config, const SpeculationParts& parts)
    : name_(parts.name),
      config_(config),
      taps_(parts.target->options().taps, wanted_taps(config, parts.head.get(), parts.target->config().layers)),
      cost_model_(*parts.cost_model) {
  nodes_ = tree_nodes(config) - 1;
  depth_ = config.on() ? std::min(config.tree.depth, nodes_) : 0;
  acceptance_ =
      make_acceptance(config.accept, *parts.backend, {parts.target->config().vocab, nodes_ + 1, std::max(1, depth_)});
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
                                                                   .uses_costs = wants_costs_,
                                                                   .controlled = config.controller,
                                                                   .is_head = parts.head != nullptr});
}

Speculation::~Speculation() = default;

void Speculation::make_drafter(const SpeculationParts& parts) {
  StartupCache nothing({});
  StartupCache& cached = parts.cache ? *parts.cache : nothing;
  const auto model = open_draft_model(config_, parts, cached);
  const bool check_weights = model && !parts.sizes_only && !cached.known("finite", build_key(config_.draft_model));
  if (model) draft_fingerprint_ = model_fingerprint(*model) + " ";  // before its pages are given back
  // Nodes of a chain's last level need not be guessed.
  const int ahead = config_.inner == DrafterKind::kNone ? 0 : std::clamp(nodes_ - 1, 1, config_.inner_nodes);
  const DraftContext context{
      .source = {.kind = config_.drafter, .name = config_.drafter_name, .head = parts.head, .model = model},
      .config = &config_,
      .tree = config_.tree,
      .cache = config_.cache,
      .draws = acceptance_->draws(),
      .nodes = nodes_,
      .ahead = ahead,
      .backend = parts.backend,
      .target = parts.target,
      .kv = parts.kv,
      .tokenizer = parts.tokenizer,
      .slots = parts.slots,
      .context = parts.context,
      .chunk = parts.chunk,
      .check_weights = check_weights,
      .sizes_only = parts.sizes_only,
      .progress = parts.progress};
  drafter_ = sx::make_drafter(context);
  draft_fingerprint_ += drafter_->state().fingerprint();
  if (check_weights) ++cached.work.scanned, cached.keep("finite", build_key(config_.draft_model), true);
}

std::shared_ptr<const HeadFile> open_head(SpecConfig& config, const std::shared_ptr<const ModelFile>& target) {
  if (config.drafts_with_mtp()) return HeadFile::of_model(target);
  if (!config.needs_model() || !is_head_folder(config.draft_model)) return nullptr;
  if (config.inner != DrafterKind::kNone)
    fail(
        "draft '{}' is a head, and speculation setting inner is {}: a drafter inside another needs a draft model of "
        "its own, or set inner to none",
        config.draft_model, setting_value(config, "inner"));
  auto head = HeadFile::open(config.draft_model, target->config());
  DraftSource source;
  source.kind = DrafterKind::kModel, source.head = head;
  if (const auto fit = find_drafter(source).fit) fit(config, *head);
  return head;
}

}  // namespace sx
