#include "model/model_weights.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "model/expert_weights.h"
#include "tensor/blocks.h"
#include "tensor/finite.h"

namespace sx {

std::unique_ptr<Matrix> WeightReader::matrix(std::initializer_list<WeightRows> names) {
  return matrix_of(std::span(names.begin(), names.size()), false);
}

std::unique_ptr<Matrix> WeightReader::head(const WeightRows& name) { return matrix_of(std::span(&name, 1), true); }

std::unique_ptr<Matrix> WeightReader::matrix_of(std::span<const WeightRows> names, bool head) {
  std::vector<Tensor> parts;
  std::vector<RowsOf> of;
  bool divided = false;
  for (const auto& [name, rows] : names) {
    parts.push_back(file_.get(name));
    of.push_back({0, int(parts.back().shape[0])});
    if (rows.end >= 0) {
      divided = true;
      of.back().first = rows.first;
      parts.back().data = parts.back().row(rows.first);
      parts.back().shape[0] = rows.size();
    }
    check_matrix(name, parts.back());
  }
  std::vector<Tensor> smaller = parts;
  std::vector<std::vector<std::byte>> memory(parts.size());
  for (size_t i = 0; requantise_ && i < parts.size(); ++i)
    smaller[i] = requantise_->make(parts[i], head ? DType::kQ8_0 : requantise_->type(), memory[i]);
  auto made = divided ? backend_.make_part(smaller, of) : backend_.make_matrix(smaller);
  for (size_t i = 0; const auto& [name, rows] : names) {
    if (name != "token_embd.weight") file_.release(parts[i]);
    ++i;
  }
  bytes_ += made->bytes();
  return made;
}

std::unique_ptr<Matrix> WeightReader::experts_of(std::span<const Tensor> parts, const LayerParts& layer) {
  std::vector<Tensor> smaller(parts.begin(), parts.end());
  std::vector<std::vector<std::byte>> memory(parts.size());
  for (size_t i = 0; requantise_ && i < parts.size(); ++i) smaller[i] = requantise_->make(parts[i], memory[i]);
  auto made = backend_.make_experts(smaller);
  bytes_ += made->bytes() / size_t(layer.experts) * size_t(layer.experts_used);
  return made;
}

void WeightReader::experts(int layer, const LayerParts& parts, FeedForwardWeights& weights, const Ranks* ranks) {
  const std::string prefix = fmt::format("blk.{}.", layer);
  weights.router = matrix({prefix + "ffn_gate_inp.weight"});
  if (parts.router_bias) weights.router_bias = stacked({{prefix + "ffn_gate_inp.bias", parts.experts}});
  if (parts.routing == Routing::kSigmoid) weights.choice_bias = stacked({{prefix + "exp_probs_b.bias", parts.experts}});
  ExpertStacks stacks = expert_stacks(file_, prefix, parts);
  if (ranks && ranks->by_columns())
    keep_columns(stacks, ranks->share(ranks->columns(parts.ffn)), ranks->share(ranks->columns(file_.config().width)));
  check_matrix(prefix + "ffn_gate_exps.weight", stacks.gate);
  check_matrix(prefix + "ffn_up_exps.weight", stacks.up);
  check_matrix(prefix + "ffn_down_exps.weight", stacks.down);
  weights.gate_up = experts_of(std::array{stacks.gate, stacks.up}, parts);
  weights.down = experts_of(std::array{stacks.down}, parts);
  if (parts.expert_bias) {
    weights.gate_up_bias = upload(stacks.gate_up_bias, "biases");
    weights.down_bias = upload(stacks.down_bias, "biases");
  }
  if (!stacks.memory.empty()) return;
  for (const Tensor& part : {stacks.gate, stacks.up, stacks.down}) file_.release(part);
}

void WeightReader::check_matrix(const std::string& name, const Tensor& tensor) const {
  if (check_matrices_) check_finite(name, tensor);
}

// A weight that is no number would make a text of nothing, without a word: quantised activations lose it on the way.
void WeightReader::check_finite(const std::string& name, const Tensor& tensor) const {
  const int64_t at = first_not_finite(tensor.type, tensor.data, tensor.elements());
  if (at >= 0)
    fail(
        "'{}': tensor '{}' holds a NaN or an infinity at row {}, column {}: the file is damaged or was converted wrongly",
        file_.path(), name, at / tensor.columns(), at % tensor.columns());
}

bool WeightReader::read(const std::string& name, int size, bool required, float* out) const {
  const NamedTensor* found = file_.find(name);
  if (!found) {
    if (required) fail("'{}': tensor '{}' is missing", file_.path(), name);
    return false;
  }
  if (found->tensor.elements() != size)
    fail("'{}': tensor '{}' has {} elements, expected {}", file_.path(), name, found->tensor.elements(), size);
  check_finite(name, found->tensor);
  dequantise(found->tensor.type, found->tensor.data, size, out);
  return true;
}

const float* WeightReader::upload(const std::vector<float>& values, const char* purpose) {
  float* out = backend_.allocate(values.size(), purpose);
  backend_.upload(out, values.data(), values.size());
  return out;
}

const float* WeightReader::stacked(std::initializer_list<WeightVector> parts) {
  int total = 0;
  bool any = false;
  for (const WeightVector& part : parts) any = any || file_.find(part.name), total += part.wanted().size();
  if (!any) return nullptr;
  std::vector<float> values(static_cast<size_t>(total));
  std::vector<float> whole;
  for (size_t at = 0; const WeightVector& part : parts) {
    const RankShare wanted = part.wanted();
    whole.assign(size_t(part.size), 0);
    read(part.name, part.size, false, whole.data());
    std::copy_n(whole.begin() + wanted.first, wanted.size(), values.begin() + ptrdiff_t(at));
    at += size_t(wanted.size());
  }
  return upload(values, "biases");
}

NormWeights WeightReader::norm(const std::string& name) {
  const ModelConfig& c = file_.config();
  return {norm_vector(name + ".weight", c.width), c.norm_bias ? stacked({{name + ".bias", c.width}}) : nullptr};
}

const float* WeightReader::norm_vector(const std::string& name, int size) {
  std::vector<float> values(static_cast<size_t>(size));
  read(name, size, true, values.data());
  if (const float offset = file_.config().norm_offset; offset != 0)
    for (float& value : values) value += offset;
  return upload(values, "norm weights");
}

const float* WeightReader::norm_product(const std::string& q, const std::string& k, int size, float factor) {
  const float offset = file_.config().norm_offset;
  std::vector<float> product(static_cast<size_t>(size)), other(product.size());
  read(q, size, true, product.data());
  read(k, size, true, other.data());
  for (size_t i = 0; i < product.size(); ++i) product[i] = (product[i] + offset) * (other[i] + offset) / factor;
  return upload(product, "norm weights");
}

const float* WeightReader::ones(int size) {
  return upload(std::vector<float>(static_cast<size_t>(size), 1.0f), "norm weights");
}

}  // namespace sx
