// One GGUF file (version 2 or 3, little endian): its keys, typed, and its tensors, as views into the bytes. The file is
// untrusted: every count is bounded by the bytes that are left, every sum and product is checked, and whatever does not
// hold is an sx::Error that names the file and the field.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/mmap.h"
#include "tensor/tensor.h"

namespace sx {

// Value types, numbered as in the file.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12
};
const char* gguf_type_name(GgufType type);

struct GgufValue;

struct GgufArray {
  GgufType element = GgufType::kU8;
  size_t count = 0;
  // Numbers and booleans stay in the file: `count` little-endian elements, unaligned.
  std::span<const std::byte> raw;
  std::vector<std::string_view> strings;  // of strings
  std::vector<GgufValue> arrays;          // of arrays
};

struct GgufValue {
  GgufType type = GgufType::kU8;
  // Unsigned types and bool: uint64_t; signed: int64_t; floats: double; views live as long as the file's bytes.
  std::variant<uint64_t, int64_t, double, std::string_view, GgufArray> value;

  // Each is empty if the value is of another kind (integers convert between widths where the value fits).
  std::optional<int64_t> as_int() const;
  std::optional<double> as_double() const;  // floats and integers
  std::optional<bool> as_bool() const;
  std::optional<std::string_view> as_string() const;
  const GgufArray* as_array() const;
  std::string print(size_t limit = 120) const;  // for people; long values shortened, control bytes escaped
};

// Element i of a numeric or boolean array; i < count.
double gguf_number(const GgufArray& array, size_t i);
int64_t gguf_integer(const GgufArray& array, size_t i);  // integers and booleans only; saturates above int64_t
bool gguf_is_integer(GgufType type);                     // the eight integer types (not bool)
bool gguf_is_float(GgufType type);

struct GgufEntry {
  std::string key;
  GgufValue value;
};

struct GgufTensor {
  std::string name;
  Tensor tensor;      // outermost dimension first
  size_t offset = 0;  // from the start of the file
};

class GgufFile {
 public:
  explicit GgufFile(const std::string& path);                    // maps the file
  GgufFile(std::span<const std::byte> bytes, std::string name);  // parses memory that outlives this object
  GgufFile(GgufFile&&) = default;

  const std::string& path() const { return path_; }
  uint32_t version() const { return version_; }
  size_t alignment() const { return alignment_; }
  std::span<const GgufEntry> entries() const { return entries_; }
  std::span<const GgufTensor> tensors() const { return tensors_; }
  const GgufValue* find(std::string_view key) const;      // null if absent
  const GgufTensor* tensor(std::string_view name) const;  // null if absent

  // Typed access. get_* is empty when the key is absent; a key of the wrong kind throws, naming file and key.
  std::optional<int64_t> get_int(std::string_view key) const;
  std::optional<double> get_double(std::string_view key) const;
  std::optional<bool> get_bool(std::string_view key) const;
  std::optional<std::string_view> get_string(std::string_view key) const;
  const GgufArray* get_array(std::string_view key) const;

  std::span<const std::byte> bytes() const { return bytes_; }
  void drop(const std::byte* from, size_t size) const;  // see MappedFile::drop; nothing for memory

 private:
  void parse();
  std::optional<MappedFile> map_;
  std::string path_;
  std::span<const std::byte> bytes_;
  uint32_t version_ = 0;
  size_t alignment_ = 32;
  std::vector<GgufEntry> entries_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> key_index_, tensor_index_;  // views of the names in the two vectors
};

// Our element type for a tensor type number of the file, empty if unknown or unsupported.
std::optional<DType> dtype_from_gguf(uint32_t type);
uint32_t dtype_to_gguf(DType type);                // SX_ASSERTs that the format has it
std::string gguf_tensor_type_name(uint32_t type);  // "IQ2_XXS (16)", for messages about types we do not read

}  // namespace sx
