// Drafting with Medusa's heads: head d guesses the token d + 1 places after the pending one from the target's state of
// the last committed token, whatever stands in between. So one pass gives the logits of all levels, and the nodes of a
// level share theirs.
#pragma once

namespace sx {

struct DrafterEntry;
extern const DrafterEntry kMedusaDrafter;

}  // namespace sx
