// GGUF and safetensors files, byte by byte.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "support/model_writer.h"
#include "tensor/blocks.h"

namespace sx::testing {
namespace {

void append_bytes(Bytes& out, const void* from, size_t size) {
  const size_t at = out.size();
  out.resize(at + size);
  if (size > 0) std::memcpy(out.data() + at, from, size);
}

template <class T>
void append(Bytes& out, const T& value) {
  append_bytes(out, &value, sizeof(T));
}

void append_text(Bytes& out, std::string_view text) {
  append(out, static_cast<uint64_t>(text.size()));
  append_bytes(out, text.data(), text.size());
}

template <class T>
Bytes bytes_of(const T& value) {
  Bytes out;
  append(out, value);
  return out;
}

template <class T>
Bytes array_of(GgufType type, std::span<const T> values) {
  Bytes out;
  append(out, static_cast<uint32_t>(type));
  append(out, static_cast<uint64_t>(values.size()));
  for (const T& value : values) append(out, value);
  return out;
}

void pad(Bytes& out, size_t alignment) {
  while (out.size() % alignment) out.push_back(std::byte{0});
}

}  // namespace

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "specextend-test-XXXXXX").string();
  if (!::mkdtemp(name.data())) throw std::runtime_error("cannot make a temporary folder " + name);
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void write_file(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

void write_file(const std::string& path, std::string_view text) { write_file(path, std::as_bytes(std::span(text))); }

Bytes read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) throw std::runtime_error("cannot read " + path);
  Bytes bytes(static_cast<size_t>(in.tellg()));
  in.seekg(0).read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

void GgufWriter::add_raw(const std::string& key, uint32_t type, std::span<const std::byte> value) {
  entries_.push_back({key, type, {value.begin(), value.end()}});
}

void GgufWriter::add_u32(const std::string& key, uint32_t value) { add_raw(key, 4, bytes_of(value)); }
void GgufWriter::add_i32(const std::string& key, int32_t value) { add_raw(key, 5, bytes_of(value)); }
void GgufWriter::add_u16(const std::string& key, uint16_t value) { add_raw(key, 2, bytes_of(value)); }
void GgufWriter::add_u64(const std::string& key, uint64_t value) { add_raw(key, 10, bytes_of(value)); }
void GgufWriter::add_f32(const std::string& key, float value) { add_raw(key, 6, bytes_of(value)); }
void GgufWriter::add_bool(const std::string& key, bool value) {
  add_raw(key, 7, bytes_of(static_cast<uint8_t>(value)));
}

void GgufWriter::add_string(const std::string& key, std::string_view value) {
  Bytes raw;
  append_text(raw, value);
  add_raw(key, 8, raw);
}

void GgufWriter::add_strings(const std::string& key, std::span<const std::string> values) {
  Bytes raw;
  append(raw, static_cast<uint32_t>(GgufType::kString));
  append(raw, static_cast<uint64_t>(values.size()));
  for (const auto& value : values) append_text(raw, value);
  add_raw(key, 9, raw);
}

void GgufWriter::add_i32s(const std::string& key, std::span<const int32_t> values) {
  add_raw(key, 9, array_of(GgufType::kI32, values));
}

void GgufWriter::add_f32s(const std::string& key, std::span<const float> values) {
  add_raw(key, 9, array_of(GgufType::kF32, values));
}

void GgufWriter::add_tensor(const std::string& name, DType type, std::vector<int64_t> shape, Bytes data, int64_t offset,
                            int64_t type_number) {
  const uint32_t number = type_number >= 0 ? static_cast<uint32_t>(type_number) : dtype_to_gguf(type);
  tensors_.push_back({name, number, std::move(shape), std::move(data), offset});
}

Bytes& GgufWriter::data_of(const std::string& name) {
  return std::find_if(tensors_.begin(), tensors_.end(), [&](const Tensor& t) { return t.name == name; })->data;
}

Bytes GgufWriter::bytes() const {
  fields_.clear();
  Bytes out;
  const auto field = [&](std::string name, auto&& write) {
    const size_t from = out.size();
    write();
    fields_.push_back({std::move(name), from, out.size() - from});
  };
  field("magic", [&] {
    for (const char c : {'G', 'G', 'U', 'F'}) append(out, c);
  });
  field("version", [&] { append(out, version); });
  field("tensor_count", [&] { append(out, static_cast<uint64_t>(tensors_.size())); });
  field("key_count", [&] { append(out, static_cast<uint64_t>(entries_.size())); });
  for (const auto& entry : entries_) {
    field(entry.key + " key", [&] { append_text(out, entry.key); });
    field(entry.key + " type", [&] { append(out, entry.type); });
    field(entry.key + " value", [&] { append_bytes(out, entry.value.data(), entry.value.size()); });
  }
  Bytes data;
  for (const auto& tensor : tensors_) {
    pad(data, alignment);
    field(tensor.name + " name", [&] { append_text(out, tensor.name); });
    field(tensor.name + " rank", [&] { append(out, static_cast<uint32_t>(tensor.shape.size())); });
    for (size_t i = tensor.shape.size(); i-- > 0;) {
      field(tensor.name + " dimension", [&] { append(out, tensor.shape[i]); });
    }
    field(tensor.name + " type", [&] { append(out, tensor.type); });
    const auto offset = tensor.offset >= 0 ? static_cast<uint64_t>(tensor.offset) : static_cast<uint64_t>(data.size());
    field(tensor.name + " offset", [&] { append(out, offset); });
    append_bytes(data, tensor.data.data(), tensor.data.size());
  }
  pad(out, alignment);
  append_bytes(out, data.data(), data.size());
  return out;
}

Bytes safetensors_bytes(std::string_view header, std::span<const std::byte> data) {
  Bytes out;
  append_text(out, header);
  append_bytes(out, data.data(), data.size());
  return out;
}

void SafetensorsWriter::add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape, Bytes data) {
  if (!header_.empty()) header_ += ',';
  header_ += fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", name, dtype,
                         fmt::join(shape, ","), data_.size(), data_.size() + data.size());
  append_bytes(data_, data.data(), data.size());
}

void SafetensorsWriter::add(const std::string& name, DType type, std::vector<int64_t> shape,
                            std::span<const float> values) {
  Bytes data(dtype_bytes(type, static_cast<int64_t>(values.size())));
  quantise(type, values.data(), static_cast<int64_t>(values.size()), data.data());
  add(name, dtype_name(type), std::move(shape), std::move(data));
}

Bytes SafetensorsWriter::bytes() const {
  std::string header = fmt::format("{{{}}}", header_);
  while (header.size() % 8) header += ' ';
  return safetensors_bytes(header, data_);
}

}  // namespace sx::testing
