// Fuzzes the opening of draft heads: config.json, a zero byte, one safetensors file. Anything either yields a head all
// of whose expected tensors are there and whose token map stays inside the vocabulary, or throws sx::Error.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"
#include "model/heads/head_file.h"

namespace {

sx::ModelConfig target() {  // what the seeds are made for
  sx::ModelConfig config;
  config.layers = 7;
  config.width = 2;
  config.vocab = 4;
  config.kv_heads = 1;
  config.head_dim = 2;
  config.context = 64;
  return config;
}

void check(const sx::HeadFile& head) {
  for (const auto& tensor : sx::expected_head_tensors(head.config()))
    if (!head.find(tensor.name)) __builtin_trap();
  for (const sx::Token token : head.token_map())
    if (token < 0 || token >= 4) __builtin_trap();
  for (const int layer : head.taps().hidden)
    if (layer < 0 || layer > 7) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* zero = std::find(data, data + size, uint8_t{0});
  const std::string_view config(reinterpret_cast<const char*>(data), static_cast<size_t>(zero - data));
  const auto* rest = zero == data + size ? zero : zero + 1;
  try {
    std::vector<sx::SafetensorsFile> files;
    files.emplace_back(std::as_bytes(std::span(rest, static_cast<size_t>(data + size - rest))), "model.safetensors");
    check(sx::HeadFile("head", config, std::move(files), target()));
  } catch (const sx::Error&) {}
  return 0;
}
