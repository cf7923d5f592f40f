#include "bench/widen/widen_head.h"

#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "model/convert/new_folder.h"
#include "model/convert/quantize_head.h"
#include "model/heads/head_file.h"
#include "base/json_text.h"
#include "formats/safetensors_writer.h"

namespace sx {
namespace {

constexpr size_t kMaxConfig = size_t{16} << 20;  // bytes of config.json

std::string config_path(const std::string& folder) { return (std::filesystem::path(folder) / "config.json").string(); }

void check_head(const Json& json, const HeadConfig& config, const std::string& file) {
  if (config.kind != HeadConfig::Kind::kEagle3) fail("{}: only EAGLE-3 heads can be widened", file);
  if (json_member(json, "transformer_layer_config"))
    fail("{}: heads with a nested 'transformer_layer_config' cannot be widened", file);
  const Json* eagle = json_member(json, "eagle_config");
  const bool said = json_member(json, "eagle_aux_hidden_state_layer_ids") ||
                    json_member(json, "eagle_aux_hidden_state_layer_inputs") ||
                    (eagle && json_member(*eagle, "eagle_aux_hidden_state_layer_ids"));
  if (!said) {
    fail(
        "{}: the layers it reads are not given ('eagle_aux_hidden_state_layer_ids'); the default would be others in a "
        "deeper twin",
        file);
  }
  const RopeScaling scaling = config.cell.rope.scaling;
  if (scaling == RopeScaling::kYarn || scaling == RopeScaling::kDynamic) {
    fail("{}: yarn and dynamic RoPE scaling depend on the head size and cannot be embedded", file);
  }
}

// Places of several rows of `width` one behind the other, each now `wide` long.
std::vector<int64_t> repeated(int64_t count, int64_t width, int64_t wide) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < count * width; ++i) out.push_back(i / width * wide + i % width);
  return out;
}

class HeadPlanner {
 public:
  HeadPlanner(const HeadConfig& config, const WideMaps& maps, DType type)
      : maps_(maps),
        type_(type),
        width_(config.cell.width),
        wide_(maps.config.width),
        features_(repeated(static_cast<int64_t>(config.features.size()), width_, wide_)),
        pair_(repeated(2, width_, wide_)) {}

  TensorPlan plan(const NamedTensor& source) const {
    TensorPlan out;
    out.source = &source;
    const Tensor& t = source.tensor;
    out.out = {source.original, t.rank == 2 ? type_ : DType::kF32, {t.shape.begin(), t.shape.begin() + t.rank}};
    const std::string_view name = source.name;
    const auto ends = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
    if (name == "d2t") {
      out.out.type = t.type;
    } else if (name == "input_norm.weight" || name == "mask_hidden") {
      columns(out, features_);
      if (name != "mask_hidden") out.scale = maps_.norm_scale;
    } else if (ends("norm")) {
      columns(out, maps_.width);
      out.scale = maps_.norm_scale;
    } else if (name.starts_with("fc.")) {
      place(out, maps_.width, wide_, features_);
    } else if (name == "embed_tokens.weight" || name == "lm_head.weight") {
      columns(out, maps_.width);
    } else if (ends(".q_proj.")) {
      place(out, maps_.query, maps_.config.heads * maps_.config.head_dim,
            t.columns() == 2 * width_ ? pair_ : maps_.width);
      out.scale = maps_.query_scale;
    } else if (ends(".k_proj.") || ends(".v_proj.")) {
      place(out, ends(".k_proj.") ? maps_.key : maps_.value, maps_.config.kv_heads * maps_.config.head_dim,
            t.columns() == 2 * width_ ? pair_ : maps_.width);
    } else if (ends(".o_proj.")) {
      place(out, maps_.width, wide_, maps_.attended);
    } else if (ends(".down_proj.")) {
      place(out, maps_.width, wide_, maps_.ffn);
    } else {
      SX_ASSERT(ends(".gate_proj.") || ends(".up_proj."));
      place(out, maps_.ffn, maps_.config.ffn, maps_.width);
    }
    return out;
  }

 private:
  // The last dimension: places of its old elements, and its new size (all of the attended heads, not only those used).
  void columns(TensorPlan& plan, const std::vector<int64_t>& places) const {
    plan.columns = places;
    plan.out.shape.back() = &places == &features_        ? static_cast<int64_t>(features_.size()) / width_ * wide_
                            : &places == &pair_          ? 2 * wide_
                            : &places == &maps_.attended ? int64_t{maps_.config.heads} * maps_.config.head_dim
                            : &places == &maps_.ffn      ? maps_.config.ffn
                                                         : wide_;
  }

  // A matrix by rows and columns; of a bias (one dimension) the rows are the elements.
  void place(TensorPlan& plan, const std::vector<int64_t>& rows, int64_t row_count,
             const std::vector<int64_t>& in) const {
    if (plan.out.shape.size() == 1) {
      plan.columns = rows;
      plan.out.shape[0] = row_count;
      return;
    }
    columns(plan, in);
    plan.out.shape[0] = row_count;
    plan.rows = rows_from(rows, row_count);
  }

  const WideMaps& maps_;
  DType type_;
  int64_t width_, wide_;
  std::vector<int64_t> features_, pair_;
};

std::string wide_config(Json json, const ModelConfig& twin) {
  json["hidden_size"] = twin.width;
  json["num_attention_heads"] = twin.heads;
  json["num_key_value_heads"] = twin.kv_heads;
  json["head_dim"] = twin.head_dim;
  json["intermediate_size"] = twin.ffn;
  json["rms_norm_eps"] = static_cast<double>(twin.norm_eps);
  if (json_member(json, "target_hidden_size")) json["target_hidden_size"] = twin.width;
  return json.dump(2) + "\n";
}

}  // namespace

bool is_eagle3_folder(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return false;
  const std::string text = read_text_file_if_any(config_path(path), kMaxConfig);
  if (text.empty()) return false;
  const Json json = parse_json(text, config_path(path));
  const Json* names = json_member(json, "architectures");
  return json_member(json, "draft_vocab_size") ||
         (names && names->dump(-1, ' ', false, Json::error_handler_t::replace).find("agle3") != std::string::npos);
}

ConvertReport widen_eagle3(const std::string& folder, const WideShape& shape, const QuantizeJob& job) {
  const std::string file = config_path(folder);
  if (dtype_is_quantised(job.types.matrices))
    fail("a head is written as F32, F16 or BF16, not {}", dtype_name(job.types.matrices));
  const Json json = parse_json(read_text_file(file, kMaxConfig), file);
  const auto head = open_head_alone(folder);
  const HeadConfig& config = head->config();
  check_head(json, config, file);
  WideShape own = shape;
  own.layers = 0;
  const WideMaps maps = wide_maps(config.cell, own, RopeStyle::kHalves, file);
  const HeadPlanner planner(config, maps, job.types.matrices);
  std::vector<TensorPlan> plans;
  for (const auto& tensor : head->tensors()) plans.push_back(planner.plan(tensor));
  ConvertReport report;
  report.path = job.out;
  report.tensors = outputs_of(plans);
  for (const auto& tensor : report.tensors) report.bytes += tensor.bytes();
  if (job.dry_run) return report;
  NewFolder made(job.out, job.force);
  SafetensorsOutput out(job.out, report.tensors, job.force);
  write_tensors([&](const Tensor& tensor) { head->release(tensor); }, plans, out, job.write);
  out.finish();
  write_text_file(config_path(job.out), wide_config(json, maps.config), job.force);
  made.kept = true;
  return report;
}

}  // namespace sx
