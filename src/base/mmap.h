// A read-only map of a whole file. Throws sx::Error naming the file when it cannot be opened or mapped.
#pragma once
#include <cstddef>
#include <span>
#include <string>

namespace sx {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  // The pages that lie wholly inside [from, from + size) may leave memory; they are read again from the file if
  // touched.
  void drop(const std::byte* from, size_t size) const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace sx
