// Quest: each head keeps the chunks whose bounds of the keys allow the largest product with the drafter's last query.
// Tang et al., "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference", arXiv:2406.10774.
#include "speculative/cache/choice.h"
#include "speculative/cache/config.h"

namespace sx {

extern const CachePolicy kQuestCache{.name = "quest",
                                     .scores = {.query = CacheScores::Query::kDraft, .kind = ScoreKind::kBound},
                                     .choose = [](const CacheConfig& config, const CacheText& text,
                                                  ChoiceScratch& scratch, std::vector<int32_t>& cells) {
                                       // At least one recent cell: then all heads choose the same number of cells.
                                       const int recent = std::max(1, config.recent);
                                       choose_chunks(text.borders, text.scores, config.budget, config.sink, recent,
                                                     cells, scratch.order);
                                     }};

}  // namespace sx
