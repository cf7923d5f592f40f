// Drafting with a DFlash or DSpark drafter: one pass over a block of masks gives the logits of all levels. Its cells
// are made of the target's states as these come; the block's own cells lie behind them and are not kept.
#pragma once

namespace sx {

struct DrafterEntry;
extern const DrafterEntry kDFlashDrafter;

}  // namespace sx
