// Drafters that look the text up in itself, and the one that joins two. Each is made once for all sequence slots of an
// engine and allocates only here and in open().
#pragma once
#include <memory>

#include "speculative/config/config.h"
#include "speculative/draft/drafter.h"

namespace sx {

struct IndexLimits {
  int slots = 1;    // sequences
  int context = 0;  // tokens of a text
  int vocab = 0;
};

// Copies what followed the most recent occurrence of the text's last n tokens (n from ngram_max down to ngram_min): a
// chain.
std::unique_ptr<Drafter> make_ngram_drafter(const IndexConfig& config, const TreeConfig& tree,
                                            const IndexLimits& limits);
// A suffix automaton with counts over prompt and output; a best-first tree of the likeliest continuations. With
// config.store also over answers to earlier requests, and over the text `fixed`.
std::unique_ptr<Drafter> make_suffix_drafter(const IndexConfig& config, const TreeConfig& tree,
                                             const IndexLimits& limits, std::span<const Token> fixed = {});
// One tree from two drafters under one budget. `nodes`: drafted nodes of the tree.
std::unique_ptr<Drafter> make_fuse_drafter(std::unique_ptr<Drafter> model, std::unique_ptr<Drafter> index, int slots,
                                           int nodes);

struct DrafterEntry;
extern const DrafterEntry kNgramDrafter, kSuffixDrafter, kFuseDrafter;

}  // namespace sx
