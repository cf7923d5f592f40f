// Sampling with top-k, top-p and min-p from the likeliest tokens of a row: once top-k has been applied, nothing else of
// the row matters. See Sampling in backend/ops.h.
#pragma once
#include <span>

#include "backend/ops.h"

namespace sx::cuda {

// `best`: the sampling.top_k likeliest tokens, likeliest first, ties by token; temperature > 0. kNoToken if no logit is
// finite.
Token sample_filtered(std::span<const Candidate> best, const Sampling& sampling, uint64_t position);

}  // namespace sx::cuda
