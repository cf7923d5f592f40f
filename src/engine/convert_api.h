// What the functions of include/specextend/convert.h are made of, for tools that write other models (bench/widen).
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/model_file.h"
#include "model/convert/quantize.h"
#include "specextend/convert.h"
#include "tensor/dtype.h"

namespace sx {

std::optional<DType> type_named(const std::string& name);  // nothing for ""; throws on unknown names
DType required_type(const std::string& name);
std::shared_ptr<ModelFile> open_source(const std::string& model, const std::string& out);
void expect_gguf_name(const std::string& out);
// The vocabulary of a model in the form of GGUF. `notes` gets a sentence about each difference.
TokenizerData gguf_vocabulary(const ModelFile& file, std::vector<std::string>& notes);
ConvertResult result_of(const ConvertReport& report, std::vector<std::string> notes);

}  // namespace sx
