// Random chunks: the baseline that every other choice must beat.
#include "speculative/cache/choice.h"
#include "speculative/cache/config.h"

namespace sx {

extern const CachePolicy kRandomCache{.name = "random",
                                      .choose = [](const CacheConfig& config, const CacheText& text,
                                                   ChoiceScratch& scratch, std::vector<int32_t>& cells) {
                                        random_scores(0, uint64_t(text.cells), text.scores);
                                        choose_chunks(text.borders, text.scores, config.budget, config.sink,
                                                      config.recent, cells, scratch.order);
                                      }};

}  // namespace sx
