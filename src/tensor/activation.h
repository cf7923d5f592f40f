// The functions that feed-forward layers apply to their hidden values.
#pragma once

namespace sx {
enum class Activation {
  kSilu,      // x / (1 + e^-x)
  kGeluTanh,  // GELU by tanh, as Gemma has it
  kGelu,      // GELU by the error function
  kRelu2      // max(x, 0)^2
};
}  // namespace sx
