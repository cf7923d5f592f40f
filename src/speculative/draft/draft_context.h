// What a drafter is made from: the engine's parts, the configuration, and helpers that the makers of drafters share.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/heads/head_file.h"
#include "speculative/cache/draft_cache.h"
#include "speculative/config/config.h"
#include "speculative/draft/tree_drafter.h"
#include "text/tokenizer.h"

namespace sx {

// What a configuration asks to draft with; the registry finds who claims it.
struct DraftSource {
  DrafterKind kind = DrafterKind::kNone;
  std::string name;                        // of kNamed
  std::shared_ptr<const HeadFile> head;    // kModel: the draft model is a head on the target
  std::shared_ptr<const ModelFile> model;  // a draft model of its own, checked against the target's vocabulary
};

struct DraftContext {
  DraftSource source;
  const SpecConfig* config = nullptr;
  TreeConfig tree;  // of this drafter: of an inner one it is another than the configuration's
  CacheConfig cache;
  DrawMode draws = DrawMode::kBest;
  int nodes = 0;  // drafted nodes of a tree at most
  int ahead = 0;  // nodes that an inner drafter may guess

  Backend* backend = nullptr;
  Model* target = nullptr;
  KvStore* kv = nullptr;                  // of the target
  const TokenCodec* tokenizer = nullptr;  // of the target
  int slots = 1, context = 0, chunk = 512;
  bool check_weights = false;              // of a draft model
  bool sizes_only = false;                 // weights are not read: only sizes are asked for
  std::function<void(double)> progress{};  // of loading it
};

// The options that all tree drafters take from the context.
TreeDrafterOptions tree_options(const DraftContext& context);
// Of the draft's cells; throws sx::Error on a type that does not exist.
KvTypes draft_kv_type(const DraftContext& context);
// Equal: cells of such a type, rotated by these frequencies, mean the same.
std::string cells_fingerprint(KvTypes type, std::span<const double> frequencies, float factor);

// The KV stores of a drafter and the cache over them.
struct DraftStores {
  std::unique_ptr<KvStore> work, full;
  std::unique_ptr<DraftCache> cache;
};
// `cells`: shape of the drafter's cells, any capacity. `draft`: the drafter's shape and RoPE; the target's, if it
// drafts on its own cells. `layer`: see DraftCacheParts.
DraftStores make_draft_stores(const DraftContext& context, KvGeometry cells, const ModelConfig& draft,
                              std::span<const double> frequencies, int layer = -1);

// DrafterEntry::fit of heads that look at the target's own cells, at the positions of the text.
void fit_target_cells(SpecConfig& config, const HeadFile& head);

}  // namespace sx
