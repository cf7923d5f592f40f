// The forwarding backend under the name that tests use.
#pragma once
#include "backend/forwarding_backend.h"

namespace sx::testing {

using sx::ForwardingBackend;

}  // namespace sx::testing
