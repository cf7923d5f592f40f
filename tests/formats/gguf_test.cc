// The GGUF parser on well-formed files of every kind of value and on a matrix of malformed ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "expect_error.h"
#include "formats/gguf.h"
#include "support/model_writer.h"

namespace sx::testing {
namespace {

constexpr const char* kName = "some.gguf";

Bytes floats(std::vector<float> values) { return encode(DType::kF32, values, 0); }

// Keys of every kind and two tensors.
GgufWriter sample() {
  GgufWriter out;
  out.add_u32("general.alignment", 32);
  out.add_string("text", "hello");
  out.add_bool("yes", true);
  out.add_f32("number", 1.5f);
  out.add_i32("negative", -7);
  out.add_u64("large", std::numeric_limits<uint64_t>::max());
  const int32_t integers[] = {1, -2, 3};
  out.add_i32s("integers", integers);
  const std::string words[] = {"a", "", "long word"};
  out.add_strings("words", words);
  out.add_tensor("matrix", DType::kF32, {2, 3}, floats({1, 2, 3, 4, 5, 6}));
  out.add_tensor("quantised", DType::kQ8_0, {2, 32}, encode(DType::kQ8_0, std::vector<float>(64, 1.0f), 0));
  return out;
}

GgufFile parse(std::span<const std::byte> bytes) { return GgufFile(bytes, kName); }

void refuse(const GgufWriter& writer, std::initializer_list<std::string> parts) {
  const Bytes bytes = writer.bytes();
  expect_error([&] { parse(bytes); }, {kName});
  expect_error([&] { parse(bytes); }, parts);
}

template <class T>
void put(Bytes& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

template <class T>
Bytes raw(std::initializer_list<T> values) {
  Bytes out(values.size() * sizeof(T));
  std::memcpy(out.data(), values.begin(), out.size());
  return out;
}

Bytes join(std::initializer_list<Bytes> parts) {
  Bytes out;
  for (const auto& part : parts) {
    for (const auto byte : part) out.push_back(byte);
  }
  return out;
}

size_t field(const GgufWriter& writer, const std::string& name) {
  for (const auto& entry : writer.fields()) {
    if (entry.name == name) return entry.offset;
  }
  ADD_FAILURE() << "no field " << name;
  return 0;
}

TEST(Gguf, ReadsEveryKindOfValue) {
  for (const uint32_t version : {2u, 3u}) {
    GgufWriter writer = sample();
    writer.version = version;
    const Bytes bytes = writer.bytes();
    const GgufFile file = parse(bytes);
    EXPECT_EQ(file.version(), version);
    EXPECT_EQ(file.entries().size(), 8u);
    EXPECT_EQ(file.get_string("text"), "hello");
    EXPECT_EQ(file.get_bool("yes"), true);
    EXPECT_EQ(file.get_double("number"), 1.5);
    EXPECT_EQ(file.get_int("negative"), -7);
    EXPECT_EQ(file.get_double("negative"), -7.0);
    EXPECT_FALSE(file.get_int("absent"));
    const GgufArray* integers = file.get_array("integers");
    ASSERT_TRUE(integers);
    EXPECT_EQ(integers->count, 3u);
    EXPECT_EQ(gguf_integer(*integers, 1), -2);
    EXPECT_THAT(file.get_array("words")->strings, ::testing::ElementsAre("a", "", "long word"));
    EXPECT_EQ(file.find("words")->print(), "string[3] {\"a\", \"\", \"long word\"}");
    expect_error([&] { file.get_int("text"); }, {kName, "text", "integer"});
    expect_error([&] { file.get_int("large"); }, {kName, "large"});
    expect_error([&] { file.get_string("yes"); }, {kName, "yes", "string"});
    expect_error([&] { file.get_array("yes"); }, {kName, "array"});
    expect_error([&] { file.get_bool("number"); }, {kName, "boolean"});
  }
}

TEST(Gguf, ReadsAllNumberTypesAndNestedArrays) {
  GgufWriter writer;
  writer.add_raw("u8", 0, raw<uint8_t>({200}));
  writer.add_raw("i8", 1, raw<int8_t>({-100}));
  writer.add_raw("i16", 3, raw<int16_t>({-30000}));
  writer.add_raw("i64", 11, raw<int64_t>({-5'000'000'000}));
  writer.add_raw("f64", 12, raw<double>({0.1}));
  const Bytes inner = join({raw<uint32_t>({0}), raw<uint64_t>({2}), raw<uint8_t>({5, 6})});
  writer.add_raw("nested", 9, join({raw<uint32_t>({9}), raw<uint64_t>({2}), inner, inner}));
  writer.add_raw("flags", 9, join({raw<uint32_t>({7}), raw<uint64_t>({2}), raw<uint8_t>({1, 0})}));
  writer.add_raw("none", 9, join({raw<uint32_t>({8}), raw<uint64_t>({0})}));
  const Bytes bytes = writer.bytes();
  const GgufFile file = parse(bytes);
  EXPECT_EQ(file.get_int("u8"), 200);
  EXPECT_EQ(file.get_int("i8"), -100);
  EXPECT_EQ(file.get_int("i16"), -30000);
  EXPECT_EQ(file.get_int("i64"), -5'000'000'000);
  EXPECT_EQ(file.get_double("f64"), 0.1);
  const GgufArray* nested = file.get_array("nested");
  ASSERT_EQ(nested->arrays.size(), 2u);
  EXPECT_EQ(gguf_integer(*nested->arrays[1].as_array(), 1), 6);
  EXPECT_EQ(file.find("flags")->print(), "bool[2] {true, false}");
  EXPECT_EQ(file.get_array("none")->count, 0u);
}

TEST(Gguf, ShapesAreOutermostFirstAndDataIsAligned) {
  const Bytes bytes = sample().bytes();
  const GgufFile file = parse(bytes);
  const GgufTensor* matrix = file.tensor("matrix");
  ASSERT_TRUE(matrix);
  EXPECT_EQ(matrix->tensor.rank, 2);
  EXPECT_EQ(matrix->tensor.shape[0], 2);
  EXPECT_EQ(matrix->tensor.shape[1], 3);
  EXPECT_EQ(matrix->offset % 32, 0u);
  float last;
  std::memcpy(&last, matrix->tensor.data + 20, 4);
  EXPECT_EQ(last, 6.0f);
  EXPECT_EQ(file.tensor("quantised")->tensor.bytes(), 68u);
  EXPECT_EQ(file.tensor("absent"), nullptr);
}

TEST(Gguf, RefusesEveryTruncation) {
  const Bytes whole = sample().bytes();
  for (size_t size = 0; size < whole.size(); ++size) {
    const Bytes part(whole.begin(),
                     whole.begin() + static_cast<std::ptrdiff_t>(size));  // exact, so that ASan sees overreads
    expect_error([&] { parse(part); }, {kName}, "at " + std::to_string(size));
  }
}

TEST(Gguf, SurvivesEveryByteChange) {
  const Bytes whole = sample().bytes();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      Bytes changed = whole;
      changed[at] = static_cast<std::byte>(value);
      try {
        const GgufFile file = parse(changed);
        for (const auto& entry : file.entries()) entry.value.print();
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(kName), std::string::npos) << error.what();
      }
    }
  }
}

TEST(Gguf, RefusesEveryAbsurdCount) {
  GgufWriter writer = sample();
  const Bytes whole = writer.bytes();
  // Offsets of 64-bit counts and lengths: of tensors, keys, key text, string, array, dimension, data offset.
  const std::pair<std::string, size_t> kCounts[] = {
      {"tensor_count", 0}, {"key_count", 0},    {"text key", 0},    {"text value", 0},       {"integers value", 4},
      {"words value", 4},  {"words value", 12}, {"matrix name", 0}, {"matrix dimension", 0}, {"matrix offset", 0}};
  for (const auto& [name, shift] : kCounts) {
    for (const uint64_t value : {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 62, uint64_t{1} << 32,
                                 uint64_t{1} << 40, uint64_t{whole.size()} * 32}) {
      Bytes changed = whole;
      put(changed, field(writer, name) + shift, value);
      expect_error([&] { parse(changed); }, {kName}, name + " = " + std::to_string(value));
    }
  }
}

TEST(Gguf, RefusesForeignHeaders) {
  GgufWriter writer = sample();
  Bytes bytes = writer.bytes();
  put(bytes, 0, 'X');
  expect_error([&] { parse(bytes); }, {kName, "not a GGUF file"});
  writer.version = 1;
  refuse(writer, {"version 1"});
  writer.version = 4;
  refuse(writer, {"version 4"});
  writer.version = 0;
  refuse(writer, {"version 0"});
  writer.version = 0x03000000;
  refuse(writer, {"big-endian"});
  expect_error([&] { parse({}); }, {kName, "ends"});
}

TEST(Gguf, RefusesBadKeys) {
  GgufWriter twice = sample();
  twice.add_u32("text", 1);
  refuse(twice, {"'text'", "twice"});
  GgufWriter empty;
  empty.add_u32("", 1);
  refuse(empty, {"empty"});
  GgufWriter lengthy;
  lengthy.add_u32(std::string(2000, 'k'), 1);
  refuse(lengthy, {"2000"});
  GgufWriter type;
  type.add_raw("odd", 13, raw<uint32_t>({1}));
  refuse(type, {"'odd'", "type 13"});
  GgufWriter flag;
  flag.add_raw("flag", 7, raw<uint8_t>({2}));
  refuse(flag, {"'flag'", "boolean"});
  GgufWriter flags;
  flags.add_raw("flags", 9, join({raw<uint32_t>({7}), raw<uint64_t>({2}), raw<uint8_t>({1, 9})}));
  refuse(flags, {"'flags'", "boolean"});
  GgufWriter deep;
  Bytes nest;
  for (int i = 0; i < 2000; ++i) nest = join({raw<uint32_t>({9}), raw<uint64_t>({1}), nest});
  deep.add_raw("deep", 9, nest);
  refuse(deep, {"'deep'", "nests"});
  GgufWriter control;
  control.add_raw("bad\x1b[31m\n", 99, {});
  refuse(control, {"bad\\x1b[31m\\n"});
}

TEST(Gguf, RefusesBadAlignment) {
  for (const uint32_t value : {0u, 1u, 4u, 24u, 33u, 1u << 21}) {
    GgufWriter writer;
    writer.add_u32("general.alignment", value);
    refuse(writer, {"general.alignment", std::to_string(value)});
  }
  GgufWriter text;
  text.add_string("general.alignment", "32");
  refuse(text, {"general.alignment", "integer"});
  GgufWriter wide;
  wide.alignment = 256;
  wide.add_u32("general.alignment", 256);
  wide.add_tensor("a", DType::kF32, {1}, floats({1}));
  wide.add_tensor("b", DType::kF32, {1}, floats({2}));
  const Bytes bytes = wide.bytes();
  EXPECT_EQ(parse(bytes).tensor("b")->offset % 256, 0u);
}

TEST(Gguf, RefusesBadTensors) {
  const auto with = [](DType type, std::vector<int64_t> shape, size_t bytes, int64_t offset = -1, int64_t number = -1) {
    GgufWriter writer;
    writer.add_tensor("first", DType::kF32, {16}, Bytes(64));
    writer.add_tensor("bad", type, std::move(shape), Bytes(bytes), offset, number);
    return writer;
  };
  refuse(with(DType::kF32, {}, 4), {"'bad'", "0 dimensions"});
  refuse(with(DType::kF32, {1, 1, 1, 1, 1}, 4), {"'bad'", "5 dimensions"});
  refuse(with(DType::kF32, {2, 0}, 4), {"'bad'", "dimension of 0"});
  refuse(with(DType::kF32, {-1}, 4), {"'bad'", "overflows"});
  refuse(with(DType::kF32, {1ll << 40, 1ll << 40}, 4), {"'bad'", "overflows"});
  refuse(with(DType::kF32, {1ll << 32, 1ll << 16, 1ll << 16}, 4), {"'bad'", "overflows"});
  refuse(with(DType::kQ8_0, {2, 31}, 68), {"'bad'", "31", "block of 32"});
  refuse(with(DType::kQ4_K, {8, 32}, 144), {"'bad'", "block of 256"});
  refuse(with(DType::kF32, {1}, 4, -1, 16), {"'bad'", "IQ2_XXS"});
  refuse(with(DType::kF32, {1}, 4, -1, 4), {"'bad'", "number 4"});
  refuse(with(DType::kF32, {1}, 4, -1, 0x7fffffff), {"'bad'", "2147483647"});
  refuse(with(DType::kF32, {4}, 16, 65), {"'bad'", "65", "multiple"});
  refuse(with(DType::kF32, {4}, 16, 1 << 20), {"'bad'", "behind the end"});
  refuse(with(DType::kF32, {4}, 16, 32), {"'first'", "'bad'", "overlap"});
  refuse(with(DType::kF32, {4}, 16, 0), {"overlap"});
  refuse(with(DType::kF32, {400}, 16), {"'bad'", "truncated"});
  GgufWriter twice = with(DType::kF32, {4}, 16);
  twice.add_tensor("first", DType::kF32, {4}, Bytes(16));
  refuse(twice, {"'first'", "twice"});
  GgufWriter unnamed;
  unnamed.add_tensor("", DType::kF32, {4}, Bytes(16));
  refuse(unnamed, {"tensor 0 is empty"});
}

TEST(Gguf, OpensFromDisk) {
  const TempFolder folder;
  const std::string path = folder.file("a.gguf");
  write_file(path, sample().bytes());
  GgufFile file(path);
  const GgufFile moved(std::move(file));
  EXPECT_EQ(moved.get_string("text"), "hello");
  EXPECT_EQ(moved.tensors().size(), 2u);
  moved.drop(moved.tensors()[0].tensor.data, moved.tensors()[0].tensor.bytes());
  expect_error([&] { GgufFile(folder.file("absent.gguf")); }, {"absent.gguf"});
  expect_error([&] { GgufFile(folder.path()); }, {folder.path()});
}

}  // namespace
}  // namespace sx::testing
