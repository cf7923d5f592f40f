// copy_rows(), and the check of a row of logits for NaN and infinity, for backends whose memory is the host's.
#pragma once
#include <cstring>

#include "backend/ops.h"
#include "tensor/finite.h"

namespace sx {

inline void copy_host_rows(const CopyRowsArgs& args) {
  for (ptrdiff_t r = 0; r < args.rows; ++r) {
    float* to = args.to + (args.into ? args.into[r] : r) * ptrdiff_t(args.to_stride);
    const float* from = args.from + (args.which ? args.which[r] : r) * ptrdiff_t(args.from_stride);
    if (args.scale != 1) {
      for (int i = 0; i < args.width; ++i) to[i] = (args.add ? to[i] : 0.0f) + from[i] * args.scale;
    } else if (args.add) {
      for (int i = 0; i < args.width; ++i) to[i] += from[i];
    } else {
      std::memmove(to, from, size_t(args.width) * sizeof(float));
    }
  }
}

// ChooseRow::broken.
inline void mark_broken(const ChooseRow& row, int vocab) {
  if (!row.broken || !is_broken_row(row.logits, size_t(vocab))) return;
  for (Token t = 0; t < vocab; ++t)
    if (row.allows(t) && is_broken_row(row.logits + t, 1)) *row.broken = 1;
}

}  // namespace sx
