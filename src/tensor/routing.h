// How a mixture's router chooses experts.
#pragma once
#include <cstdint>

namespace sx {

// How the logits of a router become the weights of the experts it chooses.
enum class Routing : uint8_t {
  kSoftmax,  // the largest logits; softmax over all experts, or, renormalised, over the chosen ones
  kSigmoid,  // the largest sigmoid(logit) + choice_bias; sigmoid(logit), or, renormalised, its share of the chosen ones
};
inline constexpr int kMostExperts = 1024, kMostUsedExperts = 64;

}  // namespace sx
