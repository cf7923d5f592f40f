// The parser of safetensors files.
#include "formats/safetensors.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/json_text.h"
#include "base/printable.h"

namespace sx {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // bytes, the format's own limit

struct ByteRange {
  uint64_t begin, end;
};

DType dtype_from_safetensors(const std::string& name, const std::string& what, const std::string& path) {
  static constexpr std::pair<const char*, DType> kTypes[] = {
      {"F32", DType::kF32},   {"F16", DType::kF16}, {"BF16", DType::kBF16}, {"F64", DType::kF64},
      {"I8", DType::kI8},     {"I16", DType::kI16}, {"I32", DType::kI32},   {"I64", DType::kI64},
      {"BOOL", DType::kBool}, {"U8", DType::kI8}};  // bytes: only ever read as blocks of a quantised type
  for (const auto& [text, type] : kTypes) {
    if (name == text) return type;
  }
  fail("{}: {} has type '{}', which is not supported", path, what, printable(name));
}

uint64_t unsigned_number(const Json& value, const std::string& what, const std::string& path) {
  if (!value.is_number_unsigned()) fail("{}: {} holds {}; whole numbers are expected", path, what, value.type_name());
  return value.get<uint64_t>();
}

// Fills type and shape; returns the bytes that they need.
uint64_t read_shape(const Json& shape, const std::string& what, const std::string& path, Tensor& tensor) {
  if (!shape.is_array()) fail("{}: the shape of {} is not an array", path, what);
  if (shape.size() > tensor.shape.size())
    fail("{}: {} has {} dimensions; at most 4 are accepted", path, what, shape.size());
  tensor.rank = static_cast<int>(shape.size());
  uint64_t elements = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    const uint64_t size = unsigned_number(shape[i], "the shape of " + what, path);
    constexpr uint64_t kMost = uint64_t{1} << 48;
    if (size > kMost || (size != 0 && elements > kMost / size)) fail("{}: the shape of {} overflows", path, what);
    elements *= size;
    tensor.shape[i] = static_cast<int64_t>(size);
  }
  return elements * static_cast<uint64_t>(dtype_info(tensor.type).bytes);
}

ByteRange read_range(const Json& offsets, const std::string& what, const std::string& path) {
  if (!offsets.is_array() || offsets.size() != 2) fail("{}: data_offsets of {} is not a pair of numbers", path, what);
  const ByteRange range{unsigned_number(offsets[0], "data_offsets of " + what, path),
                        unsigned_number(offsets[1], "data_offsets of " + what, path)};
  if (range.begin > range.end) fail("{}: data_offsets of {} end before they begin", path, what);
  return range;
}

const Json& member(const Json& entry, const char* key, const std::string& what, const std::string& path) {
  const Json* value = json_member(entry, key);
  if (!value) fail("{}: {} has no '{}'", path, what, key);
  return *value;
}

struct Entry {
  SafetensorsTensor tensor;
  ByteRange range;
};

Entry read_entry(const std::string& name, const Json& json, const std::string& path) {
  const std::string what = fmt::format("tensor '{}'", printable(name));
  if (name.empty()) fail("{}: a tensor without a name", path);
  if (!json.is_object()) fail("{}: {} is not described by an object", path, what);
  Entry entry{{name, {}}, {}};
  const auto type = json_string(json, "dtype", path);
  if (!type) fail("{}: {} has no 'dtype'", path, what);
  entry.tensor.tensor.type = dtype_from_safetensors(*type, what, path);
  const uint64_t size = read_shape(member(json, "shape", what, path), what, path, entry.tensor.tensor);
  entry.range = read_range(member(json, "data_offsets", what, path), what, path);
  if (entry.range.end - entry.range.begin != size) {
    fail("{}: {} of type {} needs {} bytes, but its data_offsets span {}", path, what, *type, size,
         entry.range.end - entry.range.begin);
  }
  return entry;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path)
    : map_(std::in_place, path), path_(path), bytes_(map_->bytes()) {
  parse();
}

SafetensorsFile::SafetensorsFile(std::span<const std::byte> bytes, std::string name)
    : path_(std::move(name)), bytes_(bytes) {
  parse();
}

void SafetensorsFile::parse() {
  uint64_t header_size = 0;
  if (bytes_.size() < sizeof(header_size))
    fail("{}: {} bytes are too few for a safetensors file", path_, bytes_.size());
  std::memcpy(&header_size, bytes_.data(), sizeof(header_size));
  if (header_size > kMaxHeader) {
    fail("{}: the header's length is {}; at most {} is accepted (is this a safetensors file?)", path_, header_size,
         kMaxHeader);
  }
  if (header_size > bytes_.size() - sizeof(header_size)) {
    fail("{}: the file ends inside its header of {} bytes", path_, header_size);
  }
  const auto header = bytes_.subspan(sizeof(header_size), static_cast<size_t>(header_size));
  if (header.empty() || header[0] != std::byte{'{'}) fail("{}: the header does not begin with '{{'", path_);
  const auto data = bytes_.subspan(sizeof(header_size) + static_cast<size_t>(header_size));
  const Json json = parse_json({reinterpret_cast<const char*>(header.data()), header.size()}, path_);
  if (!json.is_object()) fail("{}: the header is not an object", path_);

  std::vector<Entry> entries;
  for (const auto& [name, value] : json.items()) {
    if (name != "__metadata__") {
      entries.push_back(read_entry(name, value, path_));
      continue;
    }
    if (!value.is_object()) fail("{}: '__metadata__' is not an object", path_);
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) fail("{}: '__metadata__' key '{}' is not a string", path_, printable(key));
      metadata_.emplace_back(key, text.get<std::string>());
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.range.begin, a.range.end) < std::pair(b.range.begin, b.range.end);
  });
  uint64_t next = 0;
  tensors_.reserve(entries.size());
  for (auto& entry : entries) {
    const std::string what = fmt::format("tensor '{}'", printable(entry.tensor.name));
    if (entry.range.begin != next) {
      fail("{}: the data of {} begins at {}, expected {} (data must neither overlap nor leave holes)", path_, what,
           entry.range.begin, next);
    }
    if (entry.range.end > data.size()) {
      fail("{}: the data of {} ends at {}, but the file holds only {} bytes of data (truncated?)", path_, what,
           entry.range.end, data.size());
    }
    next = entry.range.end;
    entry.tensor.tensor.data = data.data() + static_cast<size_t>(entry.range.begin);
    align(entry.tensor.tensor);
    tensors_.push_back(std::move(entry.tensor));
    index_.emplace(tensors_.back().name, tensors_.size() - 1);
  }
  if (next != data.size()) fail("{}: {} bytes of data belong to no tensor", path_, data.size() - next);
}

void SafetensorsFile::align(Tensor& tensor) {
  const auto size = static_cast<uintptr_t>(dtype_info(tensor.type).bytes);
  const size_t bytes = tensor.bytes();
  if (bytes == 0 || reinterpret_cast<uintptr_t>(tensor.data) % size == 0) return;
  copies_.push_back(std::make_unique<std::byte[]>(bytes));
  std::memcpy(copies_.back().get(), tensor.data, bytes);
  tensor.data = copies_.back().get();
}

const Tensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second].tensor;
}

const Tensor& SafetensorsFile::get(std::string_view name) const {
  const Tensor* found = find(name);
  if (!found) fail("{}: tensor '{}' is missing", path_, name);
  return *found;
}

void SafetensorsFile::drop(const std::byte* from, size_t size) const {
  const bool inside = from >= bytes_.data() && from < bytes_.data() + bytes_.size();
  if (map_ && inside) map_->drop(from, size);
}

}  // namespace sx
