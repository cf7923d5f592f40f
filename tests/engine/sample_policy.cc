// A draft-cache policy as an example: every k-th chunk of the text, and the most recent cells.
#include "speculative/cache/choice.h"
#include "speculative/cache/config.h"

namespace sx {
namespace {

void choose(const CacheConfig& config, const CacheText& text, ChoiceScratch&, std::vector<int32_t>& cells) {
  const int recent = std::clamp(config.recent, 1, config.budget);
  const int old = text.cells - recent;                         // Cells [0, old) are chosen in chunks.
  const int wanted = (config.budget - recent) / config.chunk;  // So many whole chunks fit into the budget.
  for (int i = 0; i < wanted; ++i) {
    const int first = int(int64_t(i) * (old / config.chunk) / wanted) * config.chunk;
    append_cells(first, first + config.chunk, cells);
  }
  append_cells(old, text.cells, cells);
}

}  // namespace

extern const CachePolicy kEveryKthCache{.name = "every-kth", .choose = choose};

}  // namespace sx
