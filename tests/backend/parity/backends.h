// The backends that the parity and invariance tests run on: one CPU backend per instruction set of this machine.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"

namespace sx::parity {

using BackendFactory = std::function<std::unique_ptr<Backend>(int threads)>;

std::vector<std::pair<std::string, BackendFactory>> test_backends();

}  // namespace sx::parity
