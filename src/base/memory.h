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

}  // namespace sx
