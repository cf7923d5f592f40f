// The drafters there are. Each file that implements one defines its entry; the table in registry.cc lists them.
// Programs and tests may register more before they open an engine: setting drafter takes their names
// (docs/extending.md).
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "speculative/draft/draft_context.h"

namespace sx {

struct DrafterEntry {
  const char* name;
  bool (*claims)(const DraftSource& source);
  std::unique_ptr<Drafter> (*make)(const DraftContext& context);
  // For heads: checks the configuration and completes it with what the head brings. Null: nothing to do. Throws
  // sx::Error.
  void (*fit)(SpecConfig& config, const HeadFile& head) = nullptr;
};

// Not thread-safe. Throws sx::Error if there is one of this name already.
void register_drafter(const DrafterEntry& entry);
// Whether a drafter of this name was registered: it is a value of setting drafter.
bool is_registered_drafter(std::string_view name);
std::vector<DrafterEntry>& registered_drafters();

// Who claims the source; throws sx::Error if nobody does.
const DrafterEntry& find_drafter(const DraftSource& source);
std::unique_ptr<Drafter> make_drafter(const DraftContext& context);
// The same context for another part of the configuration: the model or the index of drafter fuse.
std::unique_ptr<Drafter> make_part(const DraftContext& context, DrafterKind kind);
// The inner drafter that the configuration wants; null: none.
std::unique_ptr<Drafter> make_inner(const DraftContext& context);

}  // namespace sx
