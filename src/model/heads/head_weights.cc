#include "model/heads/head_weights.h"

#include "tensor/blocks.h"

namespace sx {

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

}  // namespace sx
