// TriForce's retrieval cache: each head keeps the chunks whose mean key suits the drafter's query at the end of the
// prompt. Sun et al., "TriForce: Lossless Acceleration of Long Sequence Generation with Hierarchical Speculative
// Decoding", arXiv:2404.11912.
#include "speculative/cache/choice.h"
#include "speculative/cache/config.h"

namespace sx {

extern const CachePolicy kOnceCache{.name = "once",
                                    .scores = {.query = CacheScores::Query::kDraft, .kind = ScoreKind::kLogit},
                                    .refresh = CacheRefresh::kOnce,
                                    .choose = [](const CacheConfig& config, const CacheText& text,
                                                 ChoiceScratch& scratch, std::vector<int32_t>& cells) {
                                      // At least one recent cell: then all heads choose the same number of cells.
                                      const int recent = std::max(1, config.recent);
                                      choose_chunks(text.borders, text.scores, config.budget, config.sink, recent,
                                                    cells, scratch.order);
                                    }};

}  // namespace sx
