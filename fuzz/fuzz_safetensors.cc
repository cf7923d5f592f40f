// Fuzzes the safetensors reader: any bytes either parse, with every tensor readable, or throw sx::Error.
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "formats/hf_config.h"
#include "formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const sx::SafetensorsFile file(std::span(reinterpret_cast<const std::byte*>(data), size), "fuzz.safetensors");
    for (const auto& entry : file.tensors()) {
      if (file.find(entry.name) != &entry.tensor) __builtin_trap();
      uint8_t sum = 0;
      const size_t bytes = entry.tensor.bytes();
      for (size_t i = 0; i < bytes; ++i) sum = static_cast<uint8_t>(sum + static_cast<uint8_t>(entry.tensor.data[i]));
      volatile uint8_t keep = sum;
      (void)keep;
      (void)sx::canonical_name(entry.name);
      (void)sx::is_ignored_name(entry.name);
    }
  } catch (const sx::Error&) {}
  return 0;
}
