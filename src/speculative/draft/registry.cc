#include "speculative/draft/registry.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "speculative/draft/assistant.h"
#include "speculative/draft/dflash.h"
#include "speculative/draft/drafters.h"
#include "speculative/draft/eagle.h"
#include "speculative/draft/longspec.h"
#include "speculative/draft/medusa.h"
#include "speculative/draft/model.h"

namespace sx {
namespace {

const DrafterEntry* const kDrafters[] = {&kModelDrafter,  &kSelfDrafter,     &kEagleDrafter,     &kMtpDrafter,
                                         &kMedusaDrafter, &kLongSpecDrafter, &kAssistantDrafter, &kDFlashDrafter,
                                         &kNgramDrafter,  &kSuffixDrafter,   &kFuseDrafter};

}  // namespace

void register_drafter(const DrafterEntry& entry) {
  const auto same = [&](const char* name) { return std::string_view(name) == entry.name; };
  if (same("none") ||
      std::any_of(std::begin(kDrafters), std::end(kDrafters), [&](const DrafterEntry* e) { return same(e->name); }) ||
      is_registered_drafter(entry.name))
    fail("drafter '{}' is there already: register it under another name", entry.name);
  registered_drafters().push_back(entry);
}

const DrafterEntry& find_drafter(const DraftSource& source) {
  for (const DrafterEntry* e : kDrafters)
    if (e->claims(source)) return *e;
  for (const DrafterEntry& e : registered_drafters())
    if (e.claims(source)) return e;
  fail("no drafter is registered for {}", source.name.empty() ? "this configuration" : "'" + source.name + "'");
}

std::unique_ptr<Drafter> make_drafter(const DraftContext& context) {
  return find_drafter(context.source).make(context);
}

std::unique_ptr<Drafter> make_part(const DraftContext& context, DrafterKind kind) {
  DraftContext part = context;
  part.source.kind = kind;
  return make_drafter(part);
}

// Index drafters keep to what they find; a model drafts a chain on few cells.
std::unique_ptr<Drafter> make_inner(const DraftContext& context) {
  if (context.ahead == 0) return nullptr;
  DraftContext inner = context;
  inner.tree = {};
  inner.tree.nodes = inner.tree.depth = context.ahead;
  inner.cache = {};
  inner.cache.policy = &cache_policy("streaming");
  inner.cache.budget = context.config->inner_budget;
  inner.cache.sink = 16;
  inner.draws = DrawMode::kBest;
  inner.ahead = 0;
  return make_part(inner, context.config->inner);
}

}  // namespace sx
