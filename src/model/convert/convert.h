// The same model in the other form: folder to GGUF, GGUF to folder.
#pragma once
#include <optional>
#include <string>

#include "model/convert/plan.h"

namespace sx {

struct ConvertJob {
  std::string out{};
  std::optional<DType> type{};  // F32, F16 or BF16 for all matrices; default: as they are, quantised ones BF16
  bool force = false, dry_run = false;
  uint64_t shard_bytes = 5'000'000'000;  // of one safetensors file
  WriteOptions write{};
};

// `vocabulary`: in GGUF's form (arrays).
ConvertReport convert_to_gguf(const ModelFile& file, const TokenizerData& vocabulary, const ConvertJob& job);
// `vocabulary`: in a folder's form (JSON texts); the ids too.
ConvertReport convert_to_folder(const ModelFile& file, const TokenizerData& vocabulary, const ConvertJob& job);

}  // namespace sx
