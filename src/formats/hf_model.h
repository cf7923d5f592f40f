// A model as a Hugging Face folder: config.json and safetensors files.
#pragma once
#include <memory>
#include <string>

#include "formats/model_config.h"
#include "formats/model_file.h"

namespace sx {

std::shared_ptr<ModelFile> open_hf_model(const std::string& folder, Wanted wanted = Wanted::kModel);

}  // namespace sx
