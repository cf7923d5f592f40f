// SpecExtend's cross-model retrieval: the chunks that the target's last committed token attends to most per cell, and
// always the first and the most recent ones. Cha et al., "SpecExtend: A Drop-in Enhancement for Speculative Decoding of
// Long Sequences", arXiv:2505.20776.
#include "speculative/cache/choice.h"
#include "speculative/cache/config.h"

namespace sx {
namespace {

void choose(const CacheConfig& config, const CacheText& text, ChoiceScratch& scratch, std::vector<int32_t>& cells) {
  divide_by_length(text.borders, text.scores);
  choose_chunks(text.borders, text.scores, config.budget, config.sink, config.recent, cells, scratch.order);
}

// The number of chosen cells is known without the scores only where recent cells are guaranteed (kv/chunk_choice.h).
std::optional<BackendChoice> on_backend(const CacheConfig& config) {
  if (config.recent < 1) return std::nullopt;
  return BackendChoice{.per_cell = true, .budget = config.budget, .sink = config.sink, .recent = config.recent};
}

}  // namespace

extern const CachePolicy kRetrievalCache{
    .name = "retrieval", .scores = {.query = CacheScores::Query::kTarget}, .choose = choose, .on_backend = on_backend};

}  // namespace sx
