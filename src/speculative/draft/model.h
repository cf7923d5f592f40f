// Drafting with a language model: a small one with a cache of its own, or the target itself with layers left out, on
// its own cache.
#pragma once
#include <memory>
#include <vector>

#include "speculative/draft/draft_context.h"

namespace sx {

struct ModelDrafterOptions : TreeDrafterOptions {
  Model* model = nullptr;       // max_outputs >= tree_drafter_rows(); keeps its queries if the cache reads them
  DraftCache* cache = nullptr;  // null: the target drafts for itself on its own cache, `kv`
  KvStore* kv = nullptr;
  int vocab = 0;  // of the target; tokens beyond the smaller vocabulary are never drafted
  std::vector<uint8_t> skip_attention, skip_ffn;  // [layers] or empty
};

// What the drafter is to own of what the options point to.
struct OwnedModel {
  std::unique_ptr<Model> model;
  DraftStores stores;
};

std::unique_ptr<Drafter> make_model_drafter(const ModelDrafterOptions& options,
                                            std::unique_ptr<Drafter> inner = nullptr, OwnedModel owned = {});

struct DrafterEntry;
extern const DrafterEntry kModelDrafter, kSelfDrafter;  // in model_drafters.cc

// Whether the matrices of a model's layers have enough bits, 8 on average, that a copy in 4 bits which drafts for the
// model is worth its memory.
bool worth_copying(const ModelFile& file);

}  // namespace sx
