// Drafting with LongSpec's head: it attends to its own cells of the last tokens and to the target's cells of the whole
// text. Its own cells are made of tokens alone, so it has no prompt to read: what its window needs is run when it
// drafts for the first time.
//
// Its store holds the text from `base` on, which depends on the text's length only and moves by a window at a time.
// Instead of all of the target's cells it may attend to chosen ones (DraftCache), which stand at their positions in the
// text.
#pragma once

namespace sx {

struct DrafterEntry;
extern const DrafterEntry kLongSpecDrafter;

}  // namespace sx
