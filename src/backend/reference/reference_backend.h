// The naive backend: plain loops, sums in double, one thread, no layout of its own. It is the yardstick of the tests;
// it is not meant to be fast and the engine never picks it.
#pragma once
#include <memory>

#include "backend/backend.h"

namespace sx {

std::unique_ptr<Backend> make_reference_backend();

}  // namespace sx
