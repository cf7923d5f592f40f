// Drafting with an EAGLE head or with MTP blocks: cell j of its cache pairs the target's state after token j with token
// j + 1. States of tokens whose successor is not known yet wait; deeper levels of a tree are fed the head's own states,
// or, with a head that was trained for it (P-EAGLE), come from the same pass, whose rows of masks stand for unknown
// tokens.
#pragma once
#include <memory>

#include "model/heads/eagle.h"
#include "speculative/draft/draft_context.h"

namespace sx {

inline constexpr int kEagleWaiting = 64;  // states that may wait before they are run

struct EagleDrafterOptions : TreeDrafterOptions {
  EagleHead* head = nullptr;    // max_rows >= a chunk of a prompt + kEagleWaiting
  DraftCache* cache = nullptr;  // of pairs
  int levels = 0;               // P-EAGLE: levels that one pass gives; 0: each takes one of its own
};

// What the drafter is to own of what the options point to.
struct OwnedEagle {
  std::unique_ptr<EagleHead> head;
  DraftStores stores;
};

std::unique_ptr<Drafter> make_eagle_drafter(const EagleDrafterOptions& options, OwnedEagle owned = {});

struct DrafterEntry;
extern const DrafterEntry kEagleDrafter, kMtpDrafter;

}  // namespace sx
