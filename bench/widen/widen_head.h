// The zero-padded upscale of an EAGLE-3 head, for the upscale of its target: the same embedding of dimensions, folder
// to folder.
#pragma once
#include <string>

#include "bench/widen/widen.h"

namespace sx {

// Whether the path is the folder of an EAGLE-3 head (by its config.json), not a whole model.
bool is_eagle3_folder(const std::string& path);
// `shape.layers` is the target's and does not matter here. Matrices in the job's type (F32, F16 or BF16), norms in F32.
ConvertReport widen_eagle3(const std::string& folder, const WideShape& shape, const QuantizeJob& job);

}  // namespace sx
