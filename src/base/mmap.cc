#include "base/mmap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace sx {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: a pipe is refused below instead of waiting for its other end.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail("cannot open '{}': {}", path, std::strerror(errno));
  struct stat info {};
  const bool known = ::fstat(fd, &info) == 0;
  const int error = errno;
  if (!known || !S_ISREG(info.st_mode)) {
    ::close(fd);
    if (known) fail("'{}' is not a regular file", path);
    fail("cannot read the size of '{}': {}", path, std::strerror(error));
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ > 0) {
    void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int map_error = errno;
    ::close(fd);
    if (p == MAP_FAILED) fail("cannot map '{}' ({} bytes): {}", path, size_, std::strerror(map_error));
    data_ = static_cast<const std::byte*>(p);
  } else {
    ::close(fd);
  }
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

void MappedFile::drop(const std::byte* from, size_t size) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = (reinterpret_cast<uintptr_t>(from) + page - 1) / page * page;
  const auto last = (reinterpret_cast<uintptr_t>(from) + size) / page * page;
  if (last > first) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace sx
