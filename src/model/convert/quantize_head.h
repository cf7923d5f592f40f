// A draft head in another type, folder to folder: matrices become blocks (see model/heads/head_file.h for how they are
// stored), everything else stays as it is, names and config.json included.
#pragma once
#include <memory>
#include <string>

#include "model/convert/quantize.h"
#include "model/heads/head_file.h"

namespace sx {

// The head without its target: opened for one that fits whatever the head says of it.
std::shared_ptr<HeadFile> open_head_alone(const std::string& folder);
// The job's `embedding` and `output` types are those of the head's own embedding and of its lm_head or lm_heads.
ConvertReport quantize_head(const std::string& folder, const QuantizeJob& job);

}  // namespace sx
