#include "model/heads/head_weights.h"

#include "base/error.h"
#include "tensor/blocks.h"

namespace sx {

void take_features(const HeadConfig& config, std::span<const float* const> taps, std::span<const int32_t> which,
                   float* features, Backend& backend, std::span<const int32_t> into) {
  const int rows = int(which.size()), target = config.target_width;
  SX_ASSERT(taps.size() == config.features.size() && rows > 0 && (into.empty() || into.size() == which.size()));
  for (size_t i = 0; i < taps.size(); ++i)
    backend.copy_rows({.to = features + i * size_t(target),
                       .from = taps[i],
                       .rows = rows,
                       .width = target,
                       .to_stride = int(taps.size()) * target,
                       .from_stride = target,
                       .which = which.data(),
                       .into = into.empty() ? nullptr : into.data()});
}

std::unique_ptr<Matrix> HeadWeights::matrix(std::initializer_list<std::string> names) {
  std::vector<Tensor> parts;
  for (const auto& name : names) parts.push_back(file_.get(name));
  auto made = backend_.make_matrix(parts);
  for (const auto& part : parts) file_.release(part);
  bytes_ += made->bytes();
  return made;
}

const float* HeadWeights::vector(std::initializer_list<std::string> names) {
  if (!file_.find(*names.begin())) return nullptr;
  int64_t count = 0;
  for (const auto& name : names) count += file_.get(name).elements();
  std::vector<float> values(static_cast<size_t>(count));
  for (float* at = values.data(); const auto& name : names) {
    const Tensor& tensor = file_.get(name);
    dequantise(tensor.type, tensor.data, tensor.elements(), at);
    at += tensor.elements();
  }
  float* out = backend_.allocate(values.size(), "head weights");
  backend_.upload(out, values.data(), values.size());
  return out;
}

float HeadWeights::number(const std::string& name) const {
  const Tensor& tensor = file_.get(name);
  float value = 0;
  dequantise(tensor.type, tensor.data, 1, &value);
  return value;
}

}  // namespace sx
