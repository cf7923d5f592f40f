// The backend of an engine whose model is spread over the ranks that this process has joined (ranks_api.cc).
#pragma once
#include <memory>

#include "backend/backend.h"
#include "specextend/engine.h"

namespace sx {

// Rank 0. Throws sx::Error that says why there is none.
std::unique_ptr<Backend> make_ranks_backend(const EngineOptions& options);

}  // namespace sx
