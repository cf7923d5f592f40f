// The reference backend: plain loops, sums in double precision, one thread, no layout of its own. Tests compare every
// other backend with it. It is slow, and not part of the library.
#pragma once
#include <memory>

#include "backend/backend.h"

namespace sx {

std::unique_ptr<Backend> make_reference_backend();

}  // namespace sx
