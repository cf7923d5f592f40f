#include "base/memory.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>

#include "base/cpu_count.h"
#include "base/error.h"

namespace sx {
namespace {
constexpr size_t kHuge = size_t(2) << 20;
}

Pages::Pages(size_t bytes, const char* purpose) : size_(bytes) {
  if (bytes == 0) return;
  const bool huge = bytes >= kHuge;
  const size_t align = huge ? kHuge : 4096;
  if (bytes > SIZE_MAX / 2) fail("cannot allocate {} bytes for {}", bytes, purpose);
  mapped_ = (bytes + align - 1) / align * align + (huge ? kHuge : 0);
  map_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map_ == MAP_FAILED) {
    map_ = nullptr;
    fail("cannot allocate {} bytes for {}: {}", bytes, purpose, std::strerror(errno));
  }
  const auto start = (reinterpret_cast<uintptr_t>(map_) + align - 1) / align * align;
  data_ = reinterpret_cast<std::byte*>(start);
  if (huge) ::madvise(data_, (bytes + kHuge - 1) / kHuge * kHuge, MADV_HUGEPAGE);
}

void Pages::release(size_t at, size_t bytes) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t first = reinterpret_cast<uintptr_t>(data_) + at;
  const uintptr_t begin = (first + page - 1) / page * page, end = (first + bytes) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void Pages::interleave(std::span<const int> nodes) const { sx::interleave(data_, size_, nodes); }

void interleave(std::byte* data, size_t bytes, std::span<const int> nodes) {
  constexpr size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, 1024 / kWordBits> mask{};
  for (const int node : nodes) {
    const size_t n = static_cast<size_t>(node);
    if (n / kWordBits < mask.size()) mask[n / kWordBits] |= 1ul << n % kWordBits;
  }
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  if (bytes >= page)
    ::syscall(SYS_mbind, data, bytes / page * page, MPOL_INTERLEAVE, mask.data(), mask.size() * kWordBits + 1, 0);
}

void spread(const Pages& pages) {
  if (const auto& nodes = cpu_count().nodes; nodes.size() > 1) pages.interleave(nodes);
}

Pages::~Pages() {
  if (map_) ::munmap(map_, mapped_);
}

}  // namespace sx
