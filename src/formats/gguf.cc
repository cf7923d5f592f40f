// The parser of GGUF files. A cursor hands out bytes and refuses to pass the end; everything else is built on it.
#include "formats/gguf.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "base/printable.h"

namespace sx {
namespace {

constexpr uint64_t kMaxString = uint64_t{64} << 20;  // bytes of one string
constexpr uint64_t kMaxName = 512;                   // bytes of a key or a tensor's name
constexpr uint64_t kMaxArray = uint64_t{1} << 28;    // elements of one array
constexpr uint64_t kMaxEntries = uint64_t{1} << 18;  // keys, tensors
constexpr int kMaxDepth = 4;                         // arrays of arrays
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
constexpr size_t kSmallestEntry = 8 + 1 + 4 + 1;           // key length, key, type, value
constexpr size_t kSmallestTensor = 8 + 1 + 4 + 8 + 4 + 8;  // name length, name, n_dims, one dimension, type, offset

static_assert(std::endian::native == std::endian::little, "files are read as they lie in memory");

size_t fixed_size(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    default: return 0;
  }
}

class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  size_t position() const { return at_; }
  size_t left() const { return bytes_.size() - at_; }

  std::span<const std::byte> take(uint64_t size, std::string_view what) {
    if (size > left()) {
      fail("{}: the file ends inside {}: {} bytes wanted at offset {}, {} left", path_, what, size, at_, left());
    }
    const auto part = bytes_.subspan(at_, static_cast<size_t>(size));
    at_ += static_cast<size_t>(size);
    return part;
  }

  template <class T>
  T read(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::string_view string(std::string_view what, uint64_t most = kMaxString) {
    const auto size = read<uint64_t>(what);
    if (size > most) fail("{}: {} is {} bytes long; at most {} are accepted", path_, what, size, most);
    const auto part = take(size, what);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }

  // A count of things of at least `smallest` bytes each: never more than the rest of the file could hold.
  size_t count(std::string_view what, uint64_t most, size_t smallest) {
    const auto value = read<uint64_t>(what);
    if (value > most) fail("{}: {} is {}; at most {} are accepted", path_, what, value, most);
    if (value > left() / smallest) {
      fail("{}: {} is {}, but only {} bytes are left in the file", path_, what, value, left());
    }
    return static_cast<size_t>(value);
  }

  const std::string& path() const { return path_; }

 private:
  std::span<const std::byte> bytes_;
  const std::string& path_;
  size_t at_ = 0;
};

GgufType read_type(Cursor& in, const std::string& what) {
  const auto number = in.read<uint32_t>(what);
  if (number > static_cast<uint32_t>(GgufType::kF64)) fail("{}: {} has unknown value type {}", in.path(), what, number);
  return static_cast<GgufType>(number);
}

GgufValue read_value(Cursor& in, GgufType type, const std::string& what, int depth);

GgufArray read_array(Cursor& in, const std::string& what, int depth) {
  if (depth >= kMaxDepth) fail("{}: {} nests arrays more than {} deep", in.path(), what, kMaxDepth);
  GgufArray array;
  array.element = read_type(in, what);
  const size_t fixed = fixed_size(array.element);
  // A string is at least its length field; an array at least its type and count.
  const size_t smallest = fixed ? fixed : array.element == GgufType::kString ? 8 : 12;
  array.count = in.count("the length of " + what, kMaxArray, smallest);
  if (fixed) {
    array.raw = in.take(static_cast<uint64_t>(array.count) * fixed, what);
    if (array.element == GgufType::kBool) {
      for (const std::byte b : array.raw) {
        if (b > std::byte{1}) fail("{}: {} holds a boolean that is neither 0 nor 1", in.path(), what);
      }
    }
  } else if (array.element == GgufType::kString) {
    array.strings.reserve(array.count);
    for (size_t i = 0; i < array.count; ++i) array.strings.push_back(in.string(what));
  } else {
    for (size_t i = 0; i < array.count; ++i) {
      array.arrays.push_back(read_value(in, GgufType::kArray, what, depth + 1));
    }
  }
  return array;
}

GgufValue read_value(Cursor& in, GgufType type, const std::string& what, int depth) {
  GgufValue out;
  out.type = type;
  switch (type) {
    case GgufType::kU8: out.value = uint64_t{in.read<uint8_t>(what)}; break;
    case GgufType::kU16: out.value = uint64_t{in.read<uint16_t>(what)}; break;
    case GgufType::kU32: out.value = uint64_t{in.read<uint32_t>(what)}; break;
    case GgufType::kU64: out.value = in.read<uint64_t>(what); break;
    case GgufType::kI8: out.value = int64_t{in.read<int8_t>(what)}; break;
    case GgufType::kI16: out.value = int64_t{in.read<int16_t>(what)}; break;
    case GgufType::kI32: out.value = int64_t{in.read<int32_t>(what)}; break;
    case GgufType::kI64: out.value = in.read<int64_t>(what); break;
    case GgufType::kF32: out.value = static_cast<double>(in.read<float>(what)); break;
    case GgufType::kF64: out.value = in.read<double>(what); break;
    case GgufType::kString: out.value = in.string(what); break;
    case GgufType::kArray: out.value = read_array(in, what, depth); break;
    case GgufType::kBool: {
      const auto flag = in.read<uint8_t>(what);
      if (flag > 1) fail("{}: {} is the boolean {}, neither 0 nor 1", in.path(), what, flag);
      out.value = uint64_t{flag};
      break;
    }
  }
  return out;
}

uint32_t read_version(Cursor& in) {
  const auto magic = in.take(4, "the magic number");
  if (std::memcmp(magic.data(), "GGUF", 4) != 0) fail("{}: not a GGUF file (it does not begin with 'GGUF')", in.path());
  const auto version = in.read<uint32_t>("the version");
  if (version != 0 && (version & 0xffff) == 0) {
    fail("{}: a big-endian GGUF file; only little-endian ones are read (gguf-convert-endian converts)", in.path());
  }
  if (version == 1) fail("{}: GGUF version 1 is not supported; convert the model again with a current tool", in.path());
  if (version != 2 && version != 3) fail("{}: GGUF version {} is unknown; 2 and 3 are read", in.path(), version);
  return version;
}

// Data range of a tensor inside the data section, for the checks that need all of them.
struct Range {
  uint64_t begin, end;
  size_t index;
};

// Reads the dimensions (innermost first in the file) into `tensor`, checks them and returns the tensor's bytes.
uint64_t read_shape(Cursor& in, const std::string& what, Tensor& tensor) {
  const auto dims = in.read<uint32_t>("the rank of " + what);
  if (dims < 1 || dims > 4) fail("{}: {} has {} dimensions; 1 to 4 are accepted", in.path(), what, dims);
  tensor.rank = static_cast<int>(dims);
  uint64_t elements = 1;
  for (uint32_t i = 0; i < dims; ++i) {
    const auto size = in.read<uint64_t>("the shape of " + what);
    if (size == 0) fail("{}: {} has a dimension of 0", in.path(), what);
    if (size > (uint64_t{1} << 48) || elements > (uint64_t{1} << 48) / size) {
      fail("{}: the shape of {} overflows (dimension {} is {})", in.path(), what, i, size);
    }
    elements *= size;
    tensor.shape[dims - 1 - i] = static_cast<int64_t>(size);
  }
  const auto number = in.read<uint32_t>("the type of " + what);
  const auto type = dtype_from_gguf(number);
  if (!type) fail("{}: {} has type {}, which is not supported", in.path(), what, gguf_tensor_type_name(number));
  tensor.type = *type;
  const DTypeInfo& info = dtype_info(*type);
  if (tensor.columns() % info.block != 0) {
    fail("{}: rows of {} have {} elements, not a multiple of {}'s block of {}", in.path(), what, tensor.columns(),
         info.name, info.block);
  }
  return elements / static_cast<uint64_t>(info.block) * static_cast<uint64_t>(info.bytes);  // < 2^52
}

size_t read_alignment(const GgufFile& file) {
  const auto value = file.get_int("general.alignment").value_or(32);
  if (value < 8 || value > static_cast<int64_t>(kMaxAlignment) || (value & (value - 1)) != 0) {
    fail("{}: key 'general.alignment' is {}; a power of two from 8 to {} is expected", file.path(), value,
         kMaxAlignment);
  }
  return static_cast<size_t>(value);
}

// Every range must lie inside the data section, and no two may share a byte.
void check_ranges(std::vector<Range>& ranges, uint64_t available, std::span<const GgufTensor> tensors,
                  const std::string& path) {
  for (const Range& range : ranges) {
    if (range.end > available) {
      fail("{}: the data of tensor '{}' ends {} bytes into the data section, which has only {} bytes (truncated?)",
           path, printable(tensors[range.index].name), range.end, available);
    }
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin < ranges[i - 1].end) {
      fail("{}: the data of tensors '{}' and '{}' overlap", path, printable(tensors[ranges[i - 1].index].name),
           printable(tensors[ranges[i].index].name));
    }
  }
}

}  // namespace

GgufFile::GgufFile(const std::string& path) : map_(std::in_place, path), path_(path), bytes_(map_->bytes()) { parse(); }

GgufFile::GgufFile(std::span<const std::byte> bytes, std::string name) : path_(std::move(name)), bytes_(bytes) {
  parse();
}

void GgufFile::parse() {
  Cursor in(bytes_, path_);
  version_ = read_version(in);
  const size_t tensor_count = in.count("the number of tensors", kMaxEntries, kSmallestTensor);
  const size_t key_count = in.count("the number of keys", kMaxEntries, kSmallestEntry);

  entries_.reserve(key_count);  // also keeps the views in the index valid
  for (size_t i = 0; i < key_count; ++i) {
    const std::string_view key = in.string(fmt::format("key {}", i), kMaxName);
    if (key.empty()) fail("{}: key {} is empty", path_, i);
    const std::string what = fmt::format("key '{}'", printable(key));
    const GgufType type = read_type(in, what);
    entries_.push_back({std::string(key), read_value(in, type, what, 0)});
    if (!key_index_.emplace(entries_.back().key, i).second) fail("{}: {} appears twice", path_, what);
  }
  alignment_ = read_alignment(*this);

  std::vector<Range> ranges;
  ranges.reserve(tensor_count);
  tensors_.reserve(tensor_count);
  for (size_t i = 0; i < tensor_count; ++i) {
    const std::string_view name = in.string(fmt::format("the name of tensor {}", i), kMaxName);
    if (name.empty()) fail("{}: the name of tensor {} is empty", path_, i);
    const std::string what = fmt::format("tensor '{}'", printable(name));
    GgufTensor entry{std::string(name), {}, 0};
    const uint64_t size = read_shape(in, what, entry.tensor);
    const auto offset = in.read<uint64_t>("the offset of " + what);
    if (offset % alignment_ != 0)
      fail("{}: the offset {} of {} is not a multiple of {}", path_, offset, what, alignment_);
    if (offset > bytes_.size()) fail("{}: the offset {} of {} is behind the end of the file", path_, offset, what);
    ranges.push_back({offset, offset + size, i});
    tensors_.push_back(std::move(entry));
    if (!tensor_index_.emplace(tensors_.back().name, i).second) fail("{}: {} appears twice", path_, what);
  }

  const size_t data = (in.position() + alignment_ - 1) / alignment_ * alignment_;
  const uint64_t available = data <= bytes_.size() ? bytes_.size() - data : 0;
  for (const Range& range : ranges) {
    if (range.end > available) continue;  // refused below
    tensors_[range.index].offset = data + static_cast<size_t>(range.begin);
    tensors_[range.index].tensor.data = bytes_.data() + tensors_[range.index].offset;
  }
  check_ranges(ranges, available, tensors_, path_);
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found = key_index_.find(key);
  return found == key_index_.end() ? nullptr : &entries_[found->second].value;
}

const GgufTensor* GgufFile::tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

namespace {

[[noreturn]] void wrong_kind(const GgufFile& file, std::string_view key, const GgufValue& value, const char* expected) {
  fail("{}: key '{}' is of type {} ({}); {} is expected", file.path(), key, gguf_type_name(value.type), value.print(40),
       expected);
}

}  // namespace

std::optional<int64_t> GgufFile::get_int(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::nullopt;
  const auto result = value->as_int();
  if (!result) wrong_kind(*this, key, *value, "an integer");
  return result;
}

std::optional<double> GgufFile::get_double(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::nullopt;
  const auto result = value->as_double();
  if (!result) wrong_kind(*this, key, *value, "a number");
  return result;
}

std::optional<bool> GgufFile::get_bool(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::nullopt;
  const auto result = value->as_bool();
  if (!result) wrong_kind(*this, key, *value, "a boolean");
  return result;
}

std::optional<std::string_view> GgufFile::get_string(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::nullopt;
  const auto result = value->as_string();
  if (!result) wrong_kind(*this, key, *value, "a string");
  return result;
}

const GgufArray* GgufFile::get_array(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return nullptr;
  const GgufArray* result = value->as_array();
  if (!result) wrong_kind(*this, key, *value, "an array");
  return result;
}

void GgufFile::drop(const std::byte* from, size_t size) const {
  if (map_) map_->drop(from, size);
}

}  // namespace sx
