// SnapKV: each head keeps the single cells that the last queries of the prompt attend to, after the votes are averaged
// over neighbours. Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", arXiv:2404.14469.
#include "speculative/cache/choice.h"
#include "speculative/cache/config.h"

namespace sx {
namespace {

constexpr int kSnapQueries = 32;  // last queries of the prompt that vote
constexpr int kNeighbours = 7;    // cells over which votes are averaged

}  // namespace

extern const CachePolicy kSnapCache{
    .name = "snap",
    .scores = {.query = CacheScores::Query::kDraft, .single_cells = true, .queries = kSnapQueries},
    .refresh = CacheRefresh::kOnce,
    .choose = [](const CacheConfig& config, const CacheText& text, ChoiceScratch& scratch,
                 std::vector<int32_t>& cells) {
      smooth(text.scores, kNeighbours, scratch.scores);
      const int recent = std::max(config.recent, kSnapQueries);
      choose_pruned(text.scores, config.budget, 0, config.sink, recent, cells, scratch.order);
    }};

}  // namespace sx
