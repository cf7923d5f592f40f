#include "model/convert/quantize.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "formats/family.h"
#include "model/convert/gguf_keys.h"
#include "model/convert/nearest.h"
#include "base/printable.h"
#include "tensor/quantise_search.h"

namespace sx {
namespace {

bool four_bits(DType type) {
  return type == DType::kQ4_0 || type == DType::kQ4_1 || type == DType::kQ4_K || type == DType::kMXFP4 ||
         type == DType::kIQ4_NL;
}

}  // namespace

void check_types(const QuantizeJob& job) {
  const auto check = [&](DType type) {
    if (!can_quantise_search(type))
      fail("type {} cannot be written; F32, F16, BF16, Q8_0, Q4_0, Q4_1 and Q4_K can", dtype_name(type));
    if (job.write.nearest && !can_quantise_nearest(type))
      fail("type {} has no plain rounding; F32, F16, BF16, Q8_0, Q4_0 and Q4_1 have", dtype_name(type));
  };
  check(job.types.matrices);
  if (job.types.embedding) check(*job.types.embedding);
  if (job.types.output) check(*job.types.output);
  for (const auto& [name, type] : job.types.single) check(type);
}

void check_singles(const TypeChoice& choice, const std::vector<TensorPlan>& plans, const std::string& file) {
  for (const auto& [name, type] : choice.single) {
    const auto named = [&, wanted = std::string_view(name)](const TensorPlan& plan) { return plan.out.name == wanted; };
    const auto found = std::find_if(plans.begin(), plans.end(), named);
    if (found == plans.end()) fail("{}: there is no tensor '{}' whose type could be chosen", file, printable(name));
    if (stays_float(found->out)) fail("{}: tensor '{}' is no matrix and keeps its type", file, printable(name));
  }
}

// A source that is quantised loses more when it is quantised again.
void check_source(const NamedTensor& source, DType type, bool requantise) {
  if (requantise || !dtype_is_quantised(source.tensor.type) || source.tensor.type == type) return;
  fail("{}: tensor '{}' is already {}; quantising from the original weights is better (--requantize does it anyway)",
       source.file, source.original, dtype_name(source.tensor.type));
}

DType choose_type(const TypeChoice& choice, const OutputTensor& tensor, std::vector<std::string>& notes) {
  const TensorPart part = tensor.name == "token_embd.weight" ? TensorPart::kEmbedding
                          : tensor.name == "output.weight"   ? TensorPart::kOutput
                                                             : TensorPart::kMatrix;
  return choose_type(choice, tensor, part, notes);
}

DType choose_type(const TypeChoice& choice, const OutputTensor& tensor, TensorPart part,
                  std::vector<std::string>& notes) {
  if (stays_float(tensor)) return DType::kF32;
  const DType beside = four_bits(choice.matrices) ? DType::kQ8_0 : choice.matrices;
  DType type = choice.matrices;
  if (part == TensorPart::kEmbedding) type = choice.embedding.value_or(beside);
  if (part == TensorPart::kOutput) type = choice.output.value_or(beside);
  for (const auto& [name, wanted] : choice.single) {
    if (name == tensor.name) type = wanted;
  }
  const auto fits = [&](DType t) { return tensor.columns() % dtype_info(t).block == 0; };
  if (fits(type)) return type;
  const DType other = fits(DType::kQ8_0) ? DType::kQ8_0 : DType::kF16;
  // One note for all layers.
  std::string name = tensor.name;
  if (name.starts_with("blk.")) name.replace(4, name.find('.', 4) - 4, "*");
  auto note = fmt::format("'{}' is {}: its rows of {} do not divide into {}'s blocks of {}", name, dtype_name(other),
                          tensor.columns(), dtype_name(type), dtype_info(type).block);
  if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(std::move(note));
  return other;
}

GgufKeys gguf_keys_for(const ModelFile& file, const TokenizerData& vocabulary, DType type) {
  GgufKeys keys;
  if (file.format().starts_with("GGUF")) {
    copy_keys(keys, GgufFile(file.path()), type);
  } else {
    ModelConfig config = file.config();
    if (config.name.empty()) config.name = std::filesystem::path(file.path()).lexically_normal().filename().string();
    add_config_keys(keys, config, type, file.path());
    add_tokenizer_keys(keys, vocabulary);
  }
  return keys;
}

TensorForm gguf_form(const ModelConfig& config) { return {config.family->gguf_style, 0}; }

void add_rope_plan(const ModelConfig& config, std::vector<TensorPlan>& plans) {
  const auto add = [&](const char* name, std::vector<float> values) {
    if (values.empty()) return;
    TensorPlan plan;
    plan.out = {name, DType::kF32, {static_cast<int64_t>(values.size())}};
    plan.values = std::move(values);
    plans.push_back(std::move(plan));
  };
  if (config.rope.scaling != RopeScaling::kLongRope) return add("rope_freqs.weight", rope_divisors(config));
  add("rope_factors_short.weight", config.rope.factors);
  add("rope_factors_long.weight", config.rope.long_factors);
}

void finish_gguf_plans(const ModelConfig& config, std::vector<TensorPlan>& plans) {
  for (TensorPlan& plan : plans)
    for (const TensorName& name : config.family->gguf_names) {
      const size_t at = plan.out.name.find(fmt::format(".{}.", name.ours));
      if (at != std::string::npos) plan.out.name.replace(at + 1, name.ours.size(), name.theirs);
    }
  add_rope_plan(config, plans);
}

ConvertReport write_gguf(const ModelFile& file, const GgufKeys& keys, const std::vector<TensorPlan>& plans,
                         const QuantizeJob& job) {
  ConvertReport report;
  report.path = job.out;
  report.tensors = outputs_of(plans);
  report.bytes = gguf_file_bytes(keys, report.tensors);
  if (file.config().family->fused)
    report.notes.push_back("matrices that lie in one tensor are written apart: other programs may not read this file");
  if (job.dry_run) return report;
  std::error_code ignored;
  if (std::filesystem::equivalent(job.out, file.path(), ignored)) fail("'{}' would overwrite itself", job.out);
  GgufOutput out(job.out, keys, report.tensors, job.force);
  write_tensors([&](const Tensor& tensor) { file.release(tensor); }, plans, out, job.write);
  out.finish();
  return report;
}

ConvertReport quantize_model(const ModelFile& file, const TokenizerData& vocabulary, const QuantizeJob& job) {
  const TypeChoice& types = job.types;
  check_types(job);
  const ModelConfig config = with_stacked_experts(file.config());
  if (types.output && config.tied_head) {
    fail("{}: the output head is the embedding; --embedding chooses the type of both", file.path());
  }
  const TensorForm form = gguf_form(config);
  std::vector<std::string> notes;
  auto plans = plan_model(file, config, form, [&](const OutputTensor& tensor, const NamedTensor* source) {
    const DType type = choose_type(types, tensor, notes);
    if (source) check_source(*source, type, types.requantise);
    return type;
  });
  check_singles(types, plans, file.path());
  finish_gguf_plans(config, plans);
  ConvertReport report = write_gguf(file, gguf_keys_for(file, vocabulary, types.matrices), plans, job);
  report.notes.insert(report.notes.end(), notes.begin(), notes.end());
  return report;
}

}  // namespace sx
