// What the program specextend-widen does: reads a model or an EAGLE-3 head, writes its zero-padded upscale.
#pragma once
#include <specextend/convert.h>

#include <string>

namespace sx {

// Numbers that are 0 stay as they are in the model, or as the named shape has them.
struct WidenOptions {
  std::string model{};  // GGUF file, Hugging Face folder, or the folder of an EAGLE-3 head
  std::string out{};    // GGUF file; a folder for a head
  std::string shape{};  // "llama-1b", "llama-3b", "llama-8b", "llama-70b" or empty
  int width = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  std::string type = "BF16";
  std::string embedding{}, output{};
  bool force = false;
  bool dry_run = false;
  int threads = 0;
};
ConvertResult widen(const WidenOptions& options);

}  // namespace sx
