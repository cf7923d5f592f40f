// The full draft cache: the drafter attends to every cell of the text.
#include "speculative/cache/config.h"

namespace sx {

const CachePolicy kFullCache{.name = "full", .refresh = CacheRefresh::kNever};

}  // namespace sx
