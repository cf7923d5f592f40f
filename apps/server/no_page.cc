// Stands for the page's files where the build has none: there is nothing at / then.
#include "server/page.h"

namespace sx::server {

std::span<const PageAsset> page_assets() { return {}; }

}  // namespace sx::server
