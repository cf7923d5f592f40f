// Numbers and arrays in one message, written and read in the same order. Ranks run the same program on machines of one
// kind (which is checked when they meet), so numbers travel as they lie in memory.
#pragma once
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace sx {

class MessageBuffer {
 public:
  void clear() { bytes_.clear(), at_ = 0; }
  std::span<const std::byte> bytes() const { return bytes_; }
  std::span<std::byte> resize(size_t size) {
    bytes_.resize(size);
    at_ = 0;
    return bytes_;
  }

  template <class T>
  requires std::is_trivially_copyable_v<T> MessageBuffer& put(const T& value) {
    append(&value, sizeof value);
    return *this;
  }
  template <class T>
  requires std::is_trivially_copyable_v<T> MessageBuffer& put_all(std::span<const T> values) {
    put(static_cast<uint64_t>(values.size()));
    append(values.data(), values.size_bytes());
    return *this;
  }
  MessageBuffer& put_text(const std::string& text) { return put_all(std::span<const char>(text.data(), text.size())); }

  template <class T>
  T get() {
    T value;
    take(&value, sizeof value);
    return value;
  }
  template <class T>
  void get_all(std::vector<T>& values) {
    const auto count = get<uint64_t>();
    SX_ASSERT(count <= bytes_.size());
    values.resize(static_cast<size_t>(count));
    take(values.data(), values.size() * sizeof(T));
  }
  std::string get_text() {
    std::vector<char> text;
    get_all(text);
    return {text.begin(), text.end()};
  }

 private:
  void append(const void* from, size_t count) {
    const auto* bytes = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), bytes, bytes + count);
  }
  void take(void* to, size_t count) {
    SX_ASSERT(count <= bytes_.size() - at_);
    if (count > 0) std::memcpy(to, bytes_.data() + at_, count);
    at_ += count;
  }

  std::vector<std::byte> bytes_;
  size_t at_ = 0;
};

}  // namespace sx
