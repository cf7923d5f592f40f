// One safetensors file: a JSON header and tensors as views into the bytes behind it. The file is untrusted: the
// format's rules (ranges in the file, no overlap, no holes, sizes that agree with shapes) hold once it is open.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mmap.h"
#include "tensor/tensor.h"

namespace sx {

struct SafetensorsTensor {
  std::string name;
  Tensor tensor;  // data is aligned to the element size
};

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);                    // maps the file
  SafetensorsFile(std::span<const std::byte> bytes, std::string name);  // parses memory that outlives this object
  SafetensorsFile(SafetensorsFile&&) = default;

  const std::string& path() const { return path_; }
  std::span<const SafetensorsTensor> tensors() const { return tensors_; }  // in the order of the data
  const Tensor* find(std::string_view name) const;                         // null if absent
  const Tensor& get(std::string_view name) const;                          // throws, naming file and tensor
  // The "__metadata__" of the header.
  std::span<const std::pair<std::string, std::string>> metadata() const { return metadata_; }

  std::span<const std::byte> bytes() const { return bytes_; }
  void drop(const std::byte* from, size_t size) const;  // see MappedFile::drop; nothing for memory

 private:
  void parse();
  void align(Tensor& tensor);
  std::optional<MappedFile> map_;
  std::string path_;
  std::span<const std::byte> bytes_;
  std::vector<SafetensorsTensor> tensors_;
  std::unordered_map<std::string_view, size_t> index_;  // views of the names above
  std::vector<std::pair<std::string, std::string>> metadata_;
  // Copies of tensors that the file holds at odd addresses (headers of old files are not padded).
  std::vector<std::unique_ptr<std::byte[]>> copies_;
};

}  // namespace sx
