// Self-drafting on what verification has just attended to: each layer and key/value head of the target keeps the chunks
// that its own query heads attend to most per cell, from the last verified token on, and always the first and the most
// recent ones. Vegas, arXiv:2602.07223, and SparseSpec, arXiv:2512.01278, choose single cells; chunks are cheaper to
// gather.
#include "speculative/cache/choice.h"
#include "speculative/cache/config.h"

namespace sx {
namespace {

// At least one recent cell: then all heads choose the same number of cells.
int recent_of(const CacheConfig& config) { return std::max(1, config.recent); }

void choose_for_head(const CacheConfig& config, const CacheText& text, ChoiceScratch& scratch,
                     std::vector<int32_t>& cells) {
  divide_by_length(text.borders, text.scores);
  choose_chunks(text.borders, text.scores, config.budget, config.sink, recent_of(config), cells, scratch.order);
}

std::optional<BackendChoice> heads_on_backend(const CacheConfig& config) {
  return BackendChoice{.per_cell = true, .budget = config.budget, .sink = config.sink, .recent = recent_of(config)};
}

}  // namespace

extern const CachePolicy kVerifiedCache{.name = "verified",
                                        .scores = {.query = CacheScores::Query::kTarget, .each_head = true},
                                        .choose = choose_for_head,
                                        .on_backend = heads_on_backend};

}  // namespace sx
