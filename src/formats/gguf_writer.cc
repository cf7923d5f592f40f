#include "formats/gguf_writer.h"

#include <array>
#include <cstring>

#include "base/error.h"

namespace sx {
namespace {

constexpr uint64_t kAlignment = 32;
using Bytes = std::vector<std::byte>;

void append_bytes(Bytes& out, const void* from, size_t size) {
  const auto* bytes = static_cast<const std::byte*>(from);
  out.insert(out.end(), bytes, bytes + size);
}

template <class T>
void append(Bytes& out, const T& value) {
  append_bytes(out, &value, sizeof(T));
}

void append_text(Bytes& out, std::string_view text) {
  append(out, static_cast<uint64_t>(text.size()));
  append_bytes(out, text.data(), text.size());
}

void append_array_head(Bytes& out, GgufType element, size_t count) {
  append(out, static_cast<uint32_t>(element));
  append(out, static_cast<uint64_t>(count));
}

void append_value(Bytes& out, const GgufValue& value);

void append_array(Bytes& out, const GgufArray& array) {
  append_array_head(out, array.element, array.count);
  append_bytes(out, array.raw.data(), array.raw.size());
  for (const auto text : array.strings) append_text(out, text);
  for (const auto& inner : array.arrays) append_value(out, inner);
}

void append_value(Bytes& out, const GgufValue& value) {
  const auto whole = [&]<class T>(T) {
    if (const auto* i = std::get_if<int64_t>(&value.value)) return append(out, static_cast<T>(*i));
    append(out, static_cast<T>(std::get<uint64_t>(value.value)));
  };
  switch (value.type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return whole(uint8_t{});
    case GgufType::kU16:
    case GgufType::kI16: return whole(uint16_t{});
    case GgufType::kU32:
    case GgufType::kI32: return whole(uint32_t{});
    case GgufType::kU64:
    case GgufType::kI64: return whole(uint64_t{});
    case GgufType::kF32: return append(out, static_cast<float>(std::get<double>(value.value)));
    case GgufType::kF64: return append(out, std::get<double>(value.value));
    case GgufType::kString: return append_text(out, std::get<std::string_view>(value.value));
    case GgufType::kArray: return append_array(out, std::get<GgufArray>(value.value));
  }
}

uint64_t padded(uint64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

Bytes header_bytes(const GgufKeys& keys, std::span<const OutputTensor> tensors) {
  Bytes out;
  append_bytes(out, "GGUF", 4);
  append(out, uint32_t{3});
  append(out, static_cast<uint64_t>(tensors.size()));
  append(out, static_cast<uint64_t>(keys.count()));
  append_bytes(out, keys.bytes().data(), keys.bytes().size());
  uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    append_text(out, tensor.name);
    append(out, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) append(out, static_cast<uint64_t>(tensor.shape[i]));
    append(out, dtype_to_gguf(tensor.type));
    append(out, offset);
    offset = padded(offset + tensor.bytes());
  }
  out.resize(static_cast<size_t>(padded(out.size())));
  return out;
}

uint64_t data_bytes(std::span<const OutputTensor> tensors) {
  uint64_t size = 0;
  for (const auto& tensor : tensors) size += padded(tensor.bytes());
  return size;
}

}  // namespace

void GgufKeys::open(std::string_view key, GgufType type) {
  append_text(bytes_, key);
  append(bytes_, static_cast<uint32_t>(type));
  ++count_;
}

void GgufKeys::add_u32(std::string_view key, uint32_t value) {
  open(key, GgufType::kU32);
  append(bytes_, value);
}

void GgufKeys::add_f32(std::string_view key, float value) {
  open(key, GgufType::kF32);
  append(bytes_, value);
}

void GgufKeys::add_bool(std::string_view key, bool value) {
  open(key, GgufType::kBool);
  append(bytes_, static_cast<uint8_t>(value));
}

void GgufKeys::add_string(std::string_view key, std::string_view value) {
  open(key, GgufType::kString);
  append_text(bytes_, value);
}

void GgufKeys::add_strings(std::string_view key, std::span<const std::string> values) {
  open(key, GgufType::kArray);
  append_array_head(bytes_, GgufType::kString, values.size());
  for (const auto& value : values) append_text(bytes_, value);
}

void GgufKeys::add_i32s(std::string_view key, std::span<const int32_t> values) {
  open(key, GgufType::kArray);
  append_array_head(bytes_, GgufType::kI32, values.size());
  append_bytes(bytes_, values.data(), values.size_bytes());
}

void GgufKeys::add_f32s(std::string_view key, std::span<const float> values) {
  open(key, GgufType::kArray);
  append_array_head(bytes_, GgufType::kF32, values.size());
  append_bytes(bytes_, values.data(), values.size_bytes());
}

void GgufKeys::add_bools(std::string_view key, std::span<const uint8_t> values) {
  open(key, GgufType::kArray);
  append_array_head(bytes_, GgufType::kBool, values.size());
  append_bytes(bytes_, values.data(), values.size_bytes());
}

void GgufKeys::add(const GgufEntry& entry) {
  open(entry.key, entry.value.type);
  append_value(bytes_, entry.value);
}

uint64_t gguf_file_bytes(const GgufKeys& keys, std::span<const OutputTensor> tensors) {
  return header_bytes(keys, tensors).size() + data_bytes(tensors);
}

GgufOutput::GgufOutput(const std::string& path, const GgufKeys& keys, std::vector<OutputTensor> tensors, bool force)
    : tensors_(std::move(tensors)) {
  const Bytes header = header_bytes(keys, tensors_);
  file_ = std::make_unique<OutputFile>(path, header.size() + data_bytes(tensors_), force);
  file_->write(header);
}

void GgufOutput::pad() { file_->write_zeros(padded(file_->position()) - file_->position()); }

void GgufOutput::begin(size_t tensor) {
  SX_ASSERT(left_ == 0 && tensor == next_ && tensor < tensors_.size());
  pad();
  left_ = tensors_[next_++].bytes();
}

void GgufOutput::write(std::span<const std::byte> bytes) {
  SX_ASSERT(bytes.size() <= left_);
  file_->write(bytes);
  left_ -= bytes.size();
}

void GgufOutput::write_zeros(uint64_t count) {
  SX_ASSERT(count <= left_);
  file_->write_zeros(count);
  left_ -= count;
}

void GgufOutput::finish() {
  SX_ASSERT(left_ == 0 && next_ == tensors_.size());
  pad();
  file_->finish();
}

}  // namespace sx
