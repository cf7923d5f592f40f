// The safetensors parser on well-formed files and on a matrix of malformed ones.
#include <gtest/gtest.h>

#include <cstring>

#include "expect_error.h"
#include "formats/safetensors.h"
#include "support/model_writer.h"

namespace sx::testing {
namespace {

constexpr const char* kName = "some.safetensors";

SafetensorsWriter sample() {
  SafetensorsWriter out;
  out.add("bytes", "I8", {3}, Bytes(3, std::byte{7}));  // what follows lies at odd addresses
  out.add("matrix", DType::kF32, {2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6});
  out.add("half", DType::kBF16, {2}, std::vector<float>{1, 2});
  out.add("ids", "I64", {2}, Bytes(16));
  out.add("mask", "BOOL", {4}, Bytes(4));
  out.add("scalar", DType::kF16, {}, std::vector<float>{3});
  out.add("empty", DType::kF32, {0, 4}, std::vector<float>{});
  return out;
}

void refuse(const std::string& header, size_t data, std::initializer_list<std::string> parts) {
  const Bytes bytes = safetensors_bytes(header, Bytes(data));
  expect_error([&] { SafetensorsFile(bytes, kName); }, {kName}, header.substr(0, 200));
  expect_error([&] { SafetensorsFile(bytes, kName); }, parts, header.substr(0, 200));
}

// One tensor "t" described by `dtype`, `shape` and `offsets` (JSON texts).
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

TEST(Safetensors, ReadsShapesTypesAndValues) {
  const Bytes bytes = sample().bytes();
  const SafetensorsFile file(bytes, kName);
  EXPECT_EQ(file.tensors().size(), 7u);
  const Tensor& matrix = file.get("matrix");
  EXPECT_EQ(matrix.rank, 2);
  EXPECT_EQ(matrix.shape[0], 2);
  EXPECT_EQ(matrix.shape[1], 3);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(matrix.data) % 4, 0u);  // copied, because the file holds it unaligned
  float last;
  std::memcpy(&last, matrix.data + 20, 4);
  EXPECT_EQ(last, 6.0f);
  EXPECT_EQ(file.get("ids").type, DType::kI64);
  EXPECT_EQ(file.get("mask").type, DType::kBool);
  EXPECT_EQ(file.get("scalar").rank, 0);
  EXPECT_EQ(file.get("scalar").elements(), 1);
  EXPECT_EQ(file.get("empty").elements(), 0);
  EXPECT_EQ(file.find("absent"), nullptr);
  expect_error([&] { file.get("absent"); }, {kName, "absent"});
}

TEST(Safetensors, ReadsFromDiskAndMetadata) {
  const TempFolder folder;
  const std::string path = folder.file(kName);
  write_file(path, safetensors_bytes(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],)"
                                     R"("data_offsets":[0,4]}}   )",
                                     Bytes(4)));
  SafetensorsFile file(path);
  const SafetensorsFile moved(std::move(file));
  ASSERT_EQ(moved.metadata().size(), 1u);
  EXPECT_EQ(moved.metadata()[0].second, "pt");
  EXPECT_EQ(moved.get("a").elements(), 1);
  moved.drop(moved.get("a").data, 4);
  expect_error([&] { SafetensorsFile(folder.file("absent.safetensors")); }, {"absent.safetensors"});
}

TEST(Safetensors, RefusesEveryTruncation) {
  const Bytes whole = sample().bytes();
  for (size_t size = 0; size < whole.size(); ++size) {
    const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    expect_error([&] { SafetensorsFile(part, kName); }, {kName}, "at " + std::to_string(size));
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  expect_error([&] { SafetensorsFile(longer, kName); }, {kName, "1 bytes of data belong to no tensor"});
}

TEST(Safetensors, SurvivesEveryByteChange) {
  const Bytes whole = sample().bytes();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int value : {0x00, 0x22, 0x30, 0x39, 0x5b, 0x7b, 0x7d, 0x80, 0xff}) {
      Bytes changed = whole;
      changed[at] = static_cast<std::byte>(value);
      try {
        const SafetensorsFile file(changed, kName);
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(kName), std::string::npos) << error.what();
      }
    }
  }
}

TEST(Safetensors, RefusesBadHeaders) {
  refuse("", 0, {"begin"});
  refuse("[]", 0, {"begin"});
  refuse(" {}", 0, {"begin"});
  refuse("{", 0, {"JSON"});
  refuse("{}x", 0, {"JSON"});
  refuse("{\"a\":\xff}", 0, {"JSON"});
  refuse(R"({"a":1})", 0, {"'a'", "object"});
  refuse(R"({"":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4, {"without a name"});
  refuse(R"({"__metadata__":1})", 0, {"__metadata__"});
  refuse(R"({"__metadata__":{"a":1}})", 0, {"__metadata__", "'a'"});
  refuse(
      R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
      8, {"'t'", "twice"});
  refuse("{\"a\":" + std::string(100000, '['), 0, {"deep"});
  Bytes huge = safetensors_bytes("{}", {});
  const uint64_t size = 100'000'001;
  std::memcpy(huge.data(), &size, 8);
  expect_error([&] { SafetensorsFile(huge, kName); }, {kName, "100000001"});
  const uint64_t most = ~uint64_t{0};
  std::memcpy(huge.data(), &most, 8);
  expect_error([&] { SafetensorsFile(huge, kName); }, {kName, "length"});
}

TEST(Safetensors, RefusesBadEntries) {
  refuse(one(R"("F8_E4M3")", "[4]", "[0,4]"), 4, {"'t'", "F8_E4M3"});
  refuse(one("1", "[4]", "[0,4]"), 4, {"dtype"});
  refuse(one("null", "[4]", "[0,4]"), 4, {"dtype"});
  refuse(one(R"("F32")", "4", "[0,16]"), 16, {"shape"});
  refuse(one(R"("F32")", "[-1]", "[0,16]"), 16, {"shape"});
  refuse(one(R"("F32")", "[1.0]", "[0,4]"), 4, {"shape"});
  refuse(one(R"("F32")", "[1e400]", "[0,4]"), 4, {"JSON"});
  refuse(one(R"("F32")", "[99999999999999999999999]", "[0,4]"), 4, {"shape"});
  refuse(one(R"("F32")", "[18446744073709551615,2]", "[0,4]"), 4, {"overflows"});
  refuse(one(R"("F32")", "[281474976710656,281474976710656]", "[0,4]"), 4, {"overflows"});
  refuse(one(R"("F32")", "[1,1,1,1,1]", "[0,4]"), 4, {"5 dimensions"});
  refuse(one(R"("F32")", "[2]", "[0,4]"), 4, {"needs 8"});
  refuse(one(R"("F32")", "[1]", "[4,0]"), 4, {"before"});
  refuse(one(R"("F32")", "[1]", "[0]"), 4, {"data_offsets"});
  refuse(one(R"("F32")", "[1]", "[0,4,8]"), 4, {"data_offsets"});
  refuse(one(R"("F32")", "[1]", R"({"a":0})"), 4, {"data_offsets"});
  refuse(one(R"("F32")", "[1]", R"([0,"4"])"), 4, {"data_offsets"});
  refuse(one(R"("F32")", "[1]", "[4,8]"), 8, {"begins at 4", "expected 0"});  // a hole
  refuse(one(R"("F32")", "[2]", "[0,8]"), 4, {"truncated"});
  refuse(one(R"("F32")", "[1]", "[18446744073709551612,18446744073709551615]"), 4, {"'t'"});
  refuse(R"({"t":{"shape":[1],"data_offsets":[0,4]}})", 4, {"dtype"});
  refuse(R"({"t":{"dtype":"F32","data_offsets":[0,4]}})", 4, {"shape"});
  refuse(R"({"t":{"dtype":"F32","shape":[1]}})", 4, {"data_offsets"});
  refuse(
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
      12, {"'b'", "overlap"});
  refuse(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
      12, {"'b'", "holes"});
}

}  // namespace
}  // namespace sx::testing
