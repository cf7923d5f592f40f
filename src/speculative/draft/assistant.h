// A Gemma 4 assistant drafts: it looks at the target's own cells, from the position of the pending token, and is fed
// its own states along the tree. It may look at a part of the cells of layers without a window (setting cache).
#pragma once
#include "speculative/draft/registry.h"

namespace sx {

extern const DrafterEntry kAssistantDrafter;

}  // namespace sx
