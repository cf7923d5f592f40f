// Large zeroed memory straight from the system: aligned to huge pages where that helps, physical pages only when
// touched. This is what weights, KV stores and workspaces live in; nothing is allocated after set-up.
#pragma once
#include <cstddef>
#include <span>
#include <utility>

namespace sx {

class Pages {
 public:
  Pages() = default;
  // Throws sx::Error saying what it was for when the system refuses.
  Pages(size_t bytes, const char* purpose);
  ~Pages();
  Pages(Pages&& other) noexcept
      : map_(std::exchange(other.map_, nullptr)),
        mapped_(std::exchange(other.mapped_, 0)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(map_, other.map_);
    std::swap(mapped_, other.mapped_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // Whole pages that are not there yet will come from these memory nodes alternately. A wish: a system that has no such
  // nodes, or does not let processes choose, places them as it likes.
  void interleave(std::span<const int> nodes) const;
  // Gives the physical memory of whole pages in [at, at + bytes) back; they read as zeros until they are written again.
  void release(size_t at, size_t bytes) const;
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void* map_ = nullptr;
  size_t mapped_ = 0;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// For memory that all threads read, whoever wrote it first: spread over the machine's memory nodes, if it has several
// (cpu_count.h), so that all of their memory channels serve every pass. A thread may read any piece of a matrix or of
// a KV store, since pieces go to whoever is free; so no node is the right one. Must be called before it is written.
void spread(const Pages& pages);

// Pages::interleave() of whole pages at any address.
void interleave(std::byte* data, size_t bytes, std::span<const int> nodes);

}  // namespace sx
