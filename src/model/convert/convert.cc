#include "model/convert/convert.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "formats/family.h"
#include "model/convert/new_folder.h"
#include "model/convert/quantize.h"
#include "formats/hf_config.h"
#include "formats/hf_writer.h"
#include "formats/safetensors_writer.h"
#include "tensor/blocks.h"
#include "tensor/quantise_search.h"

namespace sx {
namespace {

namespace fs = std::filesystem;

void check_type(const ConvertJob& job) {
  if (job.type && !dtype_is_float(*job.type)) {
    fail("type {}: conversion writes F32, F16 or BF16; `specextend quantize` makes quantised files",
         dtype_name(*job.type));
  }
}

DType matrix_type(const ConvertJob& job, const NamedTensor* source) {
  if (job.type) return *job.type;
  return source && dtype_is_float(source->tensor.type) ? source->tensor.type : DType::kBF16;
}

// The type of most elements, for the label of the whole file.
DType main_type(const ModelFile& file, const ConvertJob& job) {
  const NamedTensor* first = file.find("blk.0.ffn_down.weight");
  return matrix_type(job, first);
}

// Norms and biases take the narrow type only if nothing is lost by it.
DType vector_type(const NamedTensor* source, DType narrow) {
  if (!source || narrow == DType::kF32) return narrow;
  const auto count = source->tensor.elements();
  std::vector<float> values(static_cast<size_t>(count)), back(values.size());
  std::vector<std::byte> bytes(dtype_bytes(narrow, count));
  dequantise(source->tensor.type, source->tensor.data, count, values.data());
  quantise(narrow, values.data(), count, bytes.data());
  dequantise(narrow, bytes.data(), count, back.data());
  return values == back ? narrow : DType::kF32;
}

void write_texts(const std::string& folder, const std::string& config, const TokenizerData& vocabulary, bool force) {
  const auto put = [&](const char* name, const std::string& text) {
    if (!text.empty()) write_text_file((fs::path(folder) / name).string(), text, force);
  };
  put("config.json", config);
  put("generation_config.json", vocabulary.generation_config_json.empty() ? generation_config_to_json(vocabulary)
                                                                          : vocabulary.generation_config_json);
  put("tokenizer.json", vocabulary.tokenizer_json);
  put("tokenizer_config.json", vocabulary.tokenizer_config_json);
  put("special_tokens_map.json", vocabulary.special_tokens_map_json);
}

}  // namespace

ConvertReport convert_to_gguf(const ModelFile& file, const TokenizerData& vocabulary, const ConvertJob& job) {
  check_type(job);
  const ModelConfig config = with_stacked_experts(file.config());
  const TensorForm form = gguf_form(config);
  const bool blocks = file.config().expert_form == ExpertForm::kBlocks;  // of MXFP4, as folders have it
  auto plans = plan_model(file, config, form, [&](const OutputTensor& tensor, const NamedTensor* source) {
    if (stays_float(tensor)) return DType::kF32;
    if (!job.type && blocks && source && source->tensor.type == DType::kMXFP4) return DType::kMXFP4;
    return matrix_type(job, source);
  });
  finish_gguf_plans(config, plans);
  QuantizeJob write{job.out, {}, job.force, job.dry_run, job.write};
  return write_gguf(file, gguf_keys_for(file, vocabulary, main_type(file, job)), plans, write);
}

ConvertReport convert_to_folder(const ModelFile& file, const TokenizerData& vocabulary, const ConvertJob& job) {
  check_type(job);
  const ModelConfig config = with_hf_biases(file.config());
  const DType main = main_type(file, job);
  const std::string config_text = config_to_json(file.config(), vocabulary, main, file.path());
  auto plans = plan_model(file, config, TensorForm{config.family->hf_style, config.family->norm_offset},
                          [&](const OutputTensor& tensor, const NamedTensor* source) {
                            return tensor.shape.size() < 2 ? vector_type(source, main) : matrix_type(job, source);
                          });
  for (auto& plan : plans) {
    const auto name = hf_name(plan.out.name, config.family);
    if (!name) fail("{}: tensor '{}' has no name in a folder", file.path(), plan.out.name);
    plan.out.name = *name;
  }
  ConvertReport report;
  report.path = job.out;
  report.tensors = outputs_of(plans);
  for (const auto& tensor : report.tensors) report.bytes += tensor.bytes();
  const auto quantised = [](const NamedTensor& t) { return dtype_is_quantised(t.tensor.type); };
  if (std::any_of(file.tensors().begin(), file.tensors().end(), quantised) && main != DType::kF32) {
    report.notes.push_back(fmt::format(
        "quantised weights were written as {}, which rounds them; --type F32 keeps them exactly", dtype_name(main)));
  }
  if (job.dry_run) return report;
  NewFolder folder(job.out, job.force);
  SafetensorsOutput out(job.out, report.tensors, job.force, job.shard_bytes);
  write_tensors([&](const Tensor& tensor) { file.release(tensor); }, plans, out, job.write);
  out.finish();
  write_texts(job.out, config_text, vocabulary, job.force);
  folder.kept = true;
  return report;
}

}  // namespace sx
