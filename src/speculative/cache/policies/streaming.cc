// Choices by place alone: a sliding window over the most recent cells, and StreamingLLM, which also keeps the first
// ones (attention sinks). Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv:2309.17453.
#include "speculative/cache/choice.h"
#include "speculative/cache/config.h"

namespace sx {

extern const CachePolicy kWindowCache{
    .name = "window",
    .choose = [](const CacheConfig& config, const CacheText& text, ChoiceScratch&, std::vector<int32_t>& cells) {
      choose_recent(text.cells, config.budget, 0, cells);
    }};

extern const CachePolicy kStreamingCache{
    .name = "streaming",
    .choose = [](const CacheConfig& config, const CacheText& text, ChoiceScratch&, std::vector<int32_t>& cells) {
      choose_recent(text.cells, config.budget, config.sink, cells);
    }};

}  // namespace sx
