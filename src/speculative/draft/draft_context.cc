#include "speculative/draft/draft_context.h"

#include <bit>

#include "base/rng.h"

namespace sx {

TreeDrafterOptions tree_options(const DraftContext& context) {
  TreeDrafterOptions options;
  options.backend = context.backend;
  options.tree = context.tree;
  options.guess = {context.draws, context.config->couple};
  options.slots = context.slots;
  options.ahead = context.ahead;
  return options;
}

KvTypes draft_kv_type(const DraftContext& context) {
  return kv_types_from_name(context.config->draft_kv_type, context.backend->default_kv_type(), "draft KV type");
}

std::string cells_fingerprint(KvTypes type, std::span<const double> frequencies, float factor) {
  uint64_t hash = std::bit_cast<uint32_t>(factor);
  for (double f : frequencies) hash = mix64(hash ^ std::bit_cast<uint64_t>(f)) + 1;
  return fmt::format("{} {} {:016x}", kv_types_name(type), frequencies.size(), hash);
}

DraftStores make_draft_stores(const DraftContext& context, KvGeometry cells, const ModelConfig& draft,
                              std::span<const double> frequencies, int layer) {
  DraftStores stores;
  DraftCacheParts parts;
  cells.capacity = DraftCache::work_cells(context.cache, context.context) + kMaxTreeNodes;
  stores.work = context.backend->make_kv(cells);
  const ModelConfig& target = context.target->config();
  const bool own = &draft != &target;
  if (own && DraftCache::two_stores(context.cache, context.context, draft.context)) {
    cells.capacity = context.context;
    stores.full = context.backend->make_kv(cells);
  }
  parts.backend = context.backend;
  parts.draft = &draft, parts.frequencies = frequencies, parts.layer = layer;
  parts.work = stores.work.get(), parts.full = own ? stores.full.get() : context.kv, parts.writes_full = own;
  parts.target = &target, parts.target_kv = context.kv;
  parts.slots = context.slots, parts.context = context.context;
  stores.cache = std::make_unique<DraftCache>(context.cache, parts);
  return stores;
}

void fit_target_cells(SpecConfig& config, const HeadFile& head) {
  if (config.cache.reads_draft())
    fail("draft '{}': the {} head looks at the target's cache; cache {} does not go with it: take cache {}",
         head.path(), head_kind_name(head.config().kind), config.cache.policy->name,
         cache_policy_names([](const CachePolicy& policy) { return !policy.reads_draft(); }));
  config.cache.positions = CachePositions::kOriginal;  // those of the target's keys
}

}  // namespace sx
