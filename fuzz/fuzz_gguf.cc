// Fuzzes the GGUF reader: any bytes either parse, with every value and tensor readable, or throw sx::Error.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/gguf_model.h"
#include "tensor/blocks.h"

namespace {

// Touches everything that the file claims to hold.
void walk(const sx::GgufFile& file) {
  for (const auto& entry : file.entries()) {
    if (file.find(entry.key) != &entry.value) __builtin_trap();
    entry.value.print();
    (void)entry.value.as_int();
    (void)entry.value.as_double();
  }
  for (const auto& entry : file.tensors()) {
    if (file.tensor(entry.name) != &entry) __builtin_trap();
    uint8_t sum = 0;
    const size_t size = entry.tensor.bytes();
    for (size_t i = 0; i < size; ++i) sum = static_cast<uint8_t>(sum + static_cast<uint8_t>(entry.tensor.data[i]));
    volatile uint8_t keep = sum;
    (void)keep;
    const bool values = sx::dtype_is_quantised(entry.tensor.type) || entry.tensor.type <= sx::DType::kBF16;
    if (values && entry.tensor.elements() <= 4096) {
      std::vector<float> out(static_cast<size_t>(entry.tensor.elements()));
      sx::dequantise(entry.tensor.type, entry.tensor.data, entry.tensor.elements(), out.data());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    walk(sx::GgufFile(bytes, "fuzz.gguf"));
    sx::check_gguf_model(bytes, "fuzz.gguf", sx::Wanted::kAnything);
    sx::check_gguf_model(bytes, "fuzz.gguf");
  } catch (const sx::Error&) {}
  return 0;
}
