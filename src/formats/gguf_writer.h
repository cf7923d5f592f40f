// GGUF files, written: first the keys, then the list of tensors, then their data as it comes. Version 3, little endian.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf.h"
#include "formats/output_file.h"
#include "formats/tensor_output.h"

namespace sx {

// The keys of a file, in order, encoded as they will lie in it.
class GgufKeys {
 public:
  void add_u32(std::string_view key, uint32_t value);
  void add_f32(std::string_view key, float value);
  void add_bool(std::string_view key, bool value);
  void add_string(std::string_view key, std::string_view value);
  void add_strings(std::string_view key, std::span<const std::string> values);
  void add_i32s(std::string_view key, std::span<const int32_t> values);
  void add_f32s(std::string_view key, std::span<const float> values);
  void add_bools(std::string_view key, std::span<const uint8_t> values);
  void add(const GgufEntry& entry);  // a key of another file, as it is

  size_t count() const { return count_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void open(std::string_view key, GgufType type);
  std::vector<std::byte> bytes_;
  size_t count_ = 0;
};

class GgufOutput : public TensorOutput {
 public:
  GgufOutput(const std::string& path, const GgufKeys& keys, std::vector<OutputTensor> tensors, bool force);
  void begin(size_t tensor) override;
  void write(std::span<const std::byte> bytes) override;
  void write_zeros(uint64_t count) override;
  void finish() override;

 private:
  void pad();
  std::vector<OutputTensor> tensors_;
  size_t next_ = 0;
  uint64_t left_ = 0;  // bytes of the current tensor still to come
  std::unique_ptr<OutputFile> file_;
};

// Bytes of the file that a GgufOutput would write.
uint64_t gguf_file_bytes(const GgufKeys& keys, std::span<const OutputTensor> tensors);

}  // namespace sx
