#include "engine/speculation.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "engine/session_origin.h"
#include "engine/startup_cache.h"
#include "base/json_text.h"
#include "speculative/draft/eagle.h"
#include "speculative/draft/longspec.h"
#include "speculative/draft/medusa.h"
#include "speculative/draft/medusa_paths.h"
#include "speculative/draft/model.h"
#include "speculative/draft/drafters.h"

namespace sx {
namespace {

constexpr double kMeasureMs = 400;   // time that may be spent on costs when an engine opens
constexpr int kSweeps = 5, kMostMeasured = 64;
constexpr int kFarHistory = 2048;
constexpr size_t kMostStored = 64 << 20;  // bytes of a text to copy from; an index has some 150 for each token

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

DType draft_kv_type(const SpecConfig& config, const Backend& backend) {
  if (config.draft_kv_type.empty()) return backend.default_kv_type();
  const auto named = dtype_from_name(config.draft_kv_type);
  if (!named || (*named != DType::kF32 && *named != DType::kF16 && *named != DType::kBF16 && *named != DType::kQ8_0))
    fail("draft KV type '{}' is not known: use f32, f16, bf16 or q8_0", config.draft_kv_type);
  return *named;
}

// The tree of preset medusa stands for that of the heads it will meet. Other limits that were set stay.
void take_medusa_tree(const HeadConfig& head, TreeConfig& tree) {
  const auto preset = medusa_paths(kMedusaHeads);
  if (tree.kind != TreeKind::kStatic || tree.paths != preset) return;
  tree.paths = head.medusa_choices.empty() ? medusa_paths(head.medusa_heads) : head.medusa_choices;
  if (tree.nodes == int(preset.size())) tree.nodes = int(tree.paths.size());
  if (tree.depth == kMedusaHeads) tree.depth = head.medusa_heads;
}

bool ends_sentence(const Tokenizer& tokenizer, Token token) {
  const std::string_view text = tokenizer.bytes_of(token);
  const size_t last = text.find_last_not_of(" \"')]");
  return text.ends_with('\n') || (last != std::string_view::npos && std::string_view(".!?").find(text[last]) != std::string_view::npos);
}

// Which halves of layers to leave out for a share of them: spread evenly, the first and last layers stay.
void skip_share(double share, int layers, std::vector<uint8_t>& attention, std::vector<uint8_t>& ffn) {
  const int halves = 2 * layers, most = std::max(0, halves - 4), wanted = std::min(most, int(std::lround(share * halves)));
  for (int i = 0; i < wanted; ++i) {
    const int half = 2 + int((int64_t(i) * 2 + 1) * most / (2 * wanted));
    (half % 2 == 0 ? attention : ffn)[size_t(half / 2)] = 1;
  }
}

// The tokens of setting store-file; none if it is not set.
std::vector<Token> stored_text(const IndexConfig& config, const Tokenizer& tokenizer) {
  if (config.store_file.empty()) return {};
  auto tokens = tokenizer.encode(read_text_file(config.store_file, kMostStored), false, false);
  if (tokens.empty()) fail("'{}' (speculation setting store-file) is empty", config.store_file);
  return tokens;
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
    drafter_ = make_drafter(config.drafter, parts);
    if (config.drafter != DrafterKind::kNgram && config.drafter != DrafterKind::kSuffix)
      capacity = std::max(capacity, make_tree_policy(config.tree)->capacity() + nodes_);
  }
  for (int i = 0; i < parts.slots; ++i) {
    trees_.push_back(std::make_unique<TokenTree>(capacity));
    if (config.on() && acceptance_->draws() != DrawMode::kBest)
      distributions_.push_back(std::make_unique<DraftProbs>(nodes_ + 1, parts.target->config().vocab));
  }
  costs_.resize(size_t(nodes_) + 1, 1.0f);
  // Cutting a tree by what was drafted would bias rules that rely on how it was drawn.
  wants_costs_ = config.on() && config.cost_model && acceptance_->draws() == DrawMode::kBest;
}

Speculation::~Speculation() = default;

std::unique_ptr<Drafter> Speculation::make_drafter(DrafterKind kind, const SpeculationParts& parts) {
  switch (kind) {
    case DrafterKind::kModel:
      if (!parts.head) return make_small_model(parts, config_.tree, config_.cache, room_, ahead(), make_inner(parts));
      return make_head(parts);
    case DrafterKind::kSelf: return make_self(parts);
    case DrafterKind::kNgram:
    case DrafterKind::kSuffix: return make_index(kind, config_.tree, parts);
    case DrafterKind::kFuse:
      return make_fuse_drafter(make_drafter(config_.fuse_model, parts), make_drafter(config_.fuse_index, parts), parts.slots, nodes_);
    case DrafterKind::kNone: break;
  }
  fail("no drafter of this kind");
}

std::unique_ptr<Drafter> Speculation::make_index(DrafterKind kind, const TreeConfig& tree, const SpeculationParts& parts) {
  const IndexLimits limits{parts.slots, parts.context, parts.target->config().vocab};
  if (kind == DrafterKind::kNgram) return make_ngram_drafter(config_.index, tree, limits);
  return make_suffix_drafter(config_.index, tree, limits, stored_text(config_.index, *parts.tokenizer));
}

// Index drafters keep to what they find; a model drafts a chain on few cells.
std::unique_ptr<Drafter> Speculation::make_inner(const SpeculationParts& parts) {
  TreeConfig tree;
  tree.nodes = tree.depth = ahead();
  switch (config_.inner) {
    case DrafterKind::kNgram:
    case DrafterKind::kSuffix: return make_index(config_.inner, tree, parts);
    case DrafterKind::kModel: {
      CacheConfig cache;
      cache.kind = CacheKind::kStreaming;
      cache.budget = config_.inner_budget;
      cache.sink = 16;
      return make_small_model(parts, tree, cache, inner_room_);
    }
    default: return nullptr;
  }
}

std::unique_ptr<Drafter> Speculation::make_small_model(const SpeculationParts& parts, const TreeConfig& tree, const CacheConfig& cache,
                                                       DraftRoom& room, int ahead, std::unique_ptr<Drafter> inner) {
  auto file = ModelFile::open(config_.draft_model);
  StartupCache nothing({});
  StartupCache& cached = parts.cache ? *parts.cache : nothing;
  if (const std::string key = build_key(parts.model, config_.draft_model); !cached.known("vocabulary", key)) {
    ++cached.work.compared;
    check_vocabulary(*parts.tokenizer, parts.target->config().vocab, *file);
    cached.keep("vocabulary", key, true);
  }
  ModelOptions options;
  options.max_outputs = model_drafter_rows(tree, parts.slots, ahead);
  options.max_rows = std::max(parts.chunk, options.max_outputs);
  options.context = parts.context + kMaxTreeNodes;
  options.progress = parts.progress;
  if (cache.reads_draft())
    for (int i = 0; i < file->config().layers; ++i) options.taps.query.push_back(i);
  options.check_weights = !parts.sizes_only && !cached.known("finite", build_key(config_.draft_model));
  const std::string fingerprint = model_fingerprint(*file);  // before its pages are given back
  room.model = Model::load(file, *parts.backend, options);
  if (options.check_weights) ++cached.work.scanned, cached.keep("finite", build_key(config_.draft_model), true);
  draft_fingerprint_ += fmt::format("{} {} {} ", fingerprint, dtype_name(draft_kv_type(config_, *parts.backend)),
                                    rope_fingerprint(room.model->rope_frequencies(), room.model->rope_factor()));
  make_cache(parts, cache, room.model->kv_geometry(parts.slots, 0, draft_kv_type(config_, *parts.backend)), room.model->config(),
             room.model->rope_frequencies(), room);
  ModelDrafterOptions drafter;
  drafter.backend = parts.backend, drafter.model = room.model.get(), drafter.cache = room.cache.get(), drafter.tree = tree;
  drafter.guess = {&room == &inner_room_ ? DrawMode::kBest : acceptance_->draws(), config_.couple};
  drafter.slots = parts.slots, drafter.vocab = parts.target->config().vocab, drafter.ahead = ahead;
  return std::make_unique<ModelDrafter>(drafter, std::move(inner));
}

std::shared_ptr<const HeadFile> open_head(SpecConfig& config, const ModelConfig& target) {
  if (!config.needs_model() || !is_head_folder(config.draft_model)) return nullptr;
  if (config.inner != DrafterKind::kNone)
    fail("draft '{}' is a head, and speculation setting inner is {}: a drafter inside another needs a draft model of its own, or set inner to none",
         config.draft_model, setting_value(config, "inner"));
  auto head = HeadFile::open(config.draft_model, target);
  const HeadConfig::Kind kind = head->config().kind;
  if (kind == HeadConfig::Kind::kLongSpec) {
    if (config.cache.reads_draft())
      fail("draft '{}': a LongSpec head looks at the target's cache; cache {} does not go with it: take cache full, window, streaming, retrieval, "
           "prune or random", head->path(), setting_value(config, "cache"));
    config.cache.positions = CachePositions::kOriginal;  // those of the target's keys
  }
  if (kind != HeadConfig::Kind::kMedusa) return head;
  if (config.cache.kind != CacheKind::kFull)
    fail("draft '{}': Medusa heads have no cache that could be {}: leave setting cache out, or use a preset like medusa", head->path(),
         setting_value(config, "cache"));
  take_medusa_tree(head->config(), config.tree);
  try {
    check_config(config);
  } catch (const Error& error) { fail("draft '{}': its tree (medusa_choices) does not fit: {}", head->path(), error.what()); }
  return head;
}

std::unique_ptr<Drafter> Speculation::make_head(const SpeculationParts& parts) {
  if (parts.head->config().kind == HeadConfig::Kind::kMedusa) return make_medusa(parts);
  if (parts.head->config().kind == HeadConfig::Kind::kLongSpec) return make_longspec(parts);
  EagleOptions options;
  options.max_outputs = model_drafter_rows(config_.tree, 1);
  options.max_rows = std::max(parts.chunk, options.max_outputs) + EagleDrafter::kWaiting;
  options.context = parts.context + kMaxTreeNodes;
  options.queries = config_.cache.reads_draft();
  head_ = EagleHead::load(parts.head, *parts.target, *parts.backend, options);
  make_cache(parts, config_.cache, head_->kv_geometry(parts.slots, 0, draft_kv_type(config_, *parts.backend)), head_->config().cell,
             head_->rope_frequencies(), room_);
  draft_fingerprint_ = fmt::format("{} {}", dtype_name(draft_kv_type(config_, *parts.backend)), rope_fingerprint(head_->rope_frequencies(), 1));
  EagleDrafterOptions drafter;
  drafter.backend = parts.backend, drafter.head = head_.get(), drafter.cache = room_.cache.get(), drafter.tree = config_.tree;
  drafter.guess = {acceptance_->draws(), config_.couple};
  drafter.slots = parts.slots;
  return std::make_unique<EagleDrafter>(drafter);
}

std::unique_ptr<Drafter> Speculation::make_medusa(const SpeculationParts& parts) {
  medusa_ = MedusaHeads::load(parts.head, *parts.target, *parts.backend, parts.slots);
  MedusaDrafterOptions drafter;
  drafter.backend = parts.backend, drafter.heads = medusa_.get(), drafter.tree = config_.tree;
  drafter.guess = {acceptance_->draws(), config_.couple};
  drafter.slots = parts.slots;
  return std::make_unique<MedusaDrafter>(drafter);
}

std::unique_ptr<Drafter> Speculation::make_longspec(const SpeculationParts& parts) {
  const int asked = config_.cache.window < 0 ? parts.head->config().window : config_.cache.window;  // 0: the whole text
  const int window = asked == 0 ? parts.context : std::min(asked, parts.context);
  LongSpecOptions options;
  options.max_outputs = model_drafter_rows(config_.tree, 1);
  options.max_rows = std::max({parts.chunk, options.max_outputs, kMaxChain});
  options.cells = longspec_cells(window);
  longspec_ = LongSpecHead::load(parts.head, *parts.target, *parts.backend, options);
  longspec_cells_ = parts.backend->make_kv(longspec_->kv_geometry(parts.slots, draft_kv_type(config_, *parts.backend)));
  if (config_.cache.chooses())
    make_cache(parts, config_.cache, parts.target->kv_geometry(parts.slots, 0, parts.kv->geometry().type), parts.target->config(),
               parts.target->rope_frequencies(), room_, parts.target->config().layers - 1);
  LongSpecDrafterOptions drafter;
  drafter.backend = parts.backend, drafter.head = longspec_.get(), drafter.kv = longspec_cells_.get(), drafter.target_kv = parts.kv;
  drafter.cache = room_.cache.get();
  drafter.tree = config_.tree, drafter.guess = {acceptance_->draws(), config_.couple};
  drafter.slots = parts.slots, drafter.window = window;
  return std::make_unique<LongSpecDrafter>(drafter);
}

// `cells`: what a cell of the drafter is; its model reads positions by `draft`'s RoPE. Where the target drafts, its own cells are the full
// ones.
void Speculation::make_cache(const SpeculationParts& parts, const CacheConfig& config, KvGeometry cells, const ModelConfig& draft,
                             std::span<const double> frequencies, DraftRoom& room, int layer) {
  DraftCacheParts cache;
  cells.capacity = DraftCache::work_cells(config, parts.context) + kMaxTreeNodes;
  room.work = parts.backend->make_kv(cells);
  const bool own = &draft != &parts.target->config();
  if (own && DraftCache::two_stores(config, parts.context, draft.context)) {
    cells.capacity = parts.context;
    room.full = parts.backend->make_kv(cells);
  }
  if (config.sentences) {
    sentence_ends_.resize(size_t(parts.target->config().vocab));
    for (Token t = 0; t < std::min(parts.tokenizer->size(), parts.target->config().vocab); ++t) sentence_ends_[size_t(t)] = ends_sentence(*parts.tokenizer, t);
  }
  cache.backend = parts.backend, cache.draft = &draft, cache.frequencies = frequencies;
  cache.layer = layer;
  cache.work = room.work.get(), cache.full = own ? room.full.get() : parts.kv, cache.writes_full = own;
  cache.target = &parts.target->config(), cache.target_kv = parts.kv, cache.sentence_ends = sentence_ends_;
  cache.slots = parts.slots, cache.context = parts.context;
  room.cache = std::make_unique<DraftCache>(config, cache);
}

std::unique_ptr<Drafter> Speculation::make_self(const SpeculationParts& parts) {
  const int layers = parts.target->config().layers;
  ModelDrafterOptions drafter;
  drafter.backend = parts.backend, drafter.model = parts.target, drafter.kv = parts.kv, drafter.tree = config_.tree;
  drafter.guess = {acceptance_->draws(), config_.couple};
  drafter.slots = parts.slots, drafter.vocab = parts.target->config().vocab;
  if (config_.cache.chooses()) {
    make_cache(parts, config_.cache, parts.target->kv_geometry(parts.slots, 0, parts.kv->geometry().type), parts.target->config(),
               parts.target->rope_frequencies(), room_);
    drafter.cache = room_.cache.get();
  }
  drafter.skip_attention.assign(size_t(layers), 0);
  drafter.skip_ffn.assign(size_t(layers), 0);
  const auto leave_out = [&](int layer) {
    if (layer < 0 || layer >= layers) fail("layer {} cannot be skipped: the model has layers 0 to {}", layer, layers - 1);
    drafter.skip_attention[size_t(layer)] = drafter.skip_ffn[size_t(layer)] = 1;
  };
  if (config_.self.exit > 0) {
    if (config_.self.exit >= layers) fail("exit at layer {}: the model has only {} layers", config_.self.exit, layers);
    for (int i = config_.self.exit; i < layers; ++i) leave_out(i);
  } else if (!config_.self.layers.empty()) {
    for (int layer : config_.self.layers) leave_out(layer);
  } else {
    skip_share(double(config_.self.skip), layers, drafter.skip_attention, drafter.skip_ffn);
  }
  drafter.ahead = ahead();
  return std::make_unique<ModelDrafter>(drafter, make_inner(parts));
}

void Speculation::observe_reading(int tokens, double ms) {
  if (tokens <= 0 || !(ms > 0)) return;
  const double seen = ms / tokens;
  if (2 * seen < read_ms_) read_ms_.restart(seen);  // so fast a reading proves that the one before was interrupted
  else read_ms_.add(seen);
  read_at_ = rounds_;
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
    if (count == 1 || (parts.backend->prefers_batches() && count <= most)) time(count, 0), time(count, far);
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
