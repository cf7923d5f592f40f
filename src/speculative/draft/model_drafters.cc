// Makes drafters that run a language model: a draft model of its own, or the target with layers left out or with
// weights in fewer bits.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "speculative/draft/model.h"
#include "speculative/draft/registry.h"

namespace sx {
namespace {

std::unique_ptr<Drafter> make_small_model(const DraftContext& context) {
  const auto& file = context.source.model;
  SX_ASSERT(file);
  ModelOptions options;
  options.max_outputs = tree_drafter_rows(context.tree, context.slots, context.ahead);
  options.max_rows = std::max(context.chunk, options.max_outputs);
  options.context = context.context + kMaxTreeNodes;
  options.progress = context.progress;
  options.check_weights = context.check_weights;
  if (context.cache.reads_draft())
    for (int i = 0; i < file->config().layers; ++i) options.taps.query.push_back(i);
  OwnedModel owned;
  owned.model = Model::load(file, *context.backend, options);
  owned.stores = make_draft_stores(context, owned.model->kv_geometry(context.slots, 0, draft_kv_type(context)),
                                   owned.model->config(), owned.model->rope_frequencies());
  ModelDrafterOptions drafter;
  static_cast<TreeDrafterOptions&>(drafter) = tree_options(context);
  drafter.model = owned.model.get(), drafter.cache = owned.stores.cache.get(),
  drafter.vocab = context.target->config().vocab;
  return make_model_drafter(drafter, make_inner(context), std::move(owned));
}

// Which halves of layers to leave out for a share of them: spread evenly, the first and last layers stay.
void skip_share(double share, int layers, std::vector<uint8_t>& attention, std::vector<uint8_t>& ffn) {
  const int halves = 2 * layers, most = std::max(0, halves - 4),
            wanted = std::min(most, int(std::lround(share * halves)));
  for (int i = 0; i < wanted; ++i) {
    const int half = 2 + int((int64_t(i) * 2 + 1) * most / (2 * wanted));
    (half % 2 == 0 ? attention : ffn)[size_t(half / 2)] = 1;
  }
}

void leave_layers_out(const SelfConfig& config, int layers, ModelDrafterOptions& drafter) {
  drafter.skip_attention.assign(size_t(layers), 0);
  drafter.skip_ffn.assign(size_t(layers), 0);
  const auto leave_out = [&](int layer) {
    if (layer < 0 || layer >= layers)
      fail("layer {} cannot be skipped: the model has layers 0 to {}", layer, layers - 1);
    drafter.skip_attention[size_t(layer)] = drafter.skip_ffn[size_t(layer)] = 1;
  };
  if (config.exit > 0) {
    if (config.exit >= layers) fail("exit at layer {}: the model has only {} layers", config.exit, layers);
    for (int i = config.exit; i < layers; ++i) leave_out(i);
  } else if (!config.layers.empty()) {
    for (int layer : config.layers) leave_out(layer);
  } else {
    skip_share(double(config.skip), layers, drafter.skip_attention, drafter.skip_ffn);
  }
}

}  // namespace

bool worth_copying(const ModelFile& file) {
  constexpr double kEnough = 8;
  double bits = 0, weights = 0;
  for (const NamedTensor& named : file.tensors()) {
    if (named.tensor.rank < 2 || !named.name.starts_with("blk.")) continue;
    weights += double(named.tensor.elements());
    bits += weight_bits(named.tensor.type) * double(named.tensor.elements());
  }
  return weights > 0 && bits >= kEnough * weights;
}

namespace {

// A copy of the target in 4 bits for QuantSpec's way of drafting: it works on the target's own cells, so it has no
// prompt to read. Null: the target drafts with its own weights. Tiwari et al., "QuantSpec: Self-Speculative Decoding
// with Hierarchical Quantized KV Cache", arXiv:2502.10424.
std::unique_ptr<Model> make_copy(const DraftContext& context) {
  const SelfWeights wanted = context.config->self.weights;
  const Model& target = *context.target;
  if (wanted == SelfWeights::kOwn) return nullptr;
  if (wanted == SelfWeights::kAuto && !worth_copying(*target.file())) return nullptr;
  ModelOptions options;
  options.max_rows = options.max_outputs = tree_drafter_rows(context.tree, context.slots, context.ahead);
  options.context = target.context();
  options.progress = context.progress;
  return Model::load_copy(target, DType::kQ4_0, options, context.sizes_only);
}

std::unique_ptr<Drafter> make_self(const DraftContext& context) {
  Model& target = *context.target;
  ModelDrafterOptions drafter;
  static_cast<TreeDrafterOptions&>(drafter) = tree_options(context);
  drafter.model = &target, drafter.kv = context.kv, drafter.vocab = target.config().vocab;
  OwnedModel owned;
  if ((owned.model = make_copy(context))) drafter.model = owned.model.get();
  if (context.cache.chooses()) {
    owned.stores = make_draft_stores(context, target.kv_geometry(context.slots, 0, context.kv->geometry().type),
                                     target.config(), target.rope_frequencies());
    drafter.cache = owned.stores.cache.get();
  }
  leave_layers_out(context.config->self, target.config().layers, drafter);
  return make_model_drafter(drafter, make_inner(context), std::move(owned));
}

}  // namespace

const DrafterEntry kModelDrafter{
    .name = "model",
    .claims = [](const DraftSource& source) { return source.kind == DrafterKind::kModel && !source.head; },
    .make = make_small_model,
};

const DrafterEntry kSelfDrafter{
    .name = "self",
    .claims = [](const DraftSource& source) { return source.kind == DrafterKind::kSelf; },
    .make = make_self,
};

}  // namespace sx
