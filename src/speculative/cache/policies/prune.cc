// SpecVLM's pruning: the single cells that the target's last committed token attends to most, and a fifth of the budget
// spread evenly over the others. Ji et al., "SpecVLM: Enhancing Speculative Decoding of Video LLMs via Verifier-Guided
// Token Pruning", arXiv:2508.16201.
#include "speculative/cache/choice.h"
#include "speculative/cache/config.h"

namespace sx {
namespace {

constexpr float kSpread = 0.2f;  // share of the budget that is spread evenly

}  // namespace

extern const CachePolicy kPruneCache{.name = "prune",
                                     .scores = {.query = CacheScores::Query::kTarget, .single_cells = true},
                                     .choose = [](const CacheConfig& config, const CacheText& text,
                                                  ChoiceScratch& scratch, std::vector<int32_t>& cells) {
                                       choose_pruned(text.scores, config.budget, kSpread, config.sink, config.recent,
                                                     cells, scratch.order);
                                     }};

}  // namespace sx
