// Names of the types of a KV cache, one or two.
#include "kv/types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace sx {
namespace {

using ::testing::HasSubstr;

TEST(KvTypes, NamesComeBack) {
  for (const DType k : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1})
    for (const DType v : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
      const KvTypes types(k, v);
      EXPECT_EQ(kv_types_from_name(kv_types_name(types), DType::kF32), types);
      EXPECT_EQ(types.same(), k == v);
      EXPECT_EQ(kv_types_name(types).find('/') == std::string::npos, k == v);
    }
}

TEST(KvTypes, EmptyPartsAreTheFastest) {
  EXPECT_EQ(kv_types_from_name("", DType::kBF16), KvTypes(DType::kBF16));
  EXPECT_EQ(kv_types_from_name("/q4_0", DType::kBF16), KvTypes(DType::kBF16, DType::kQ4_0));
  EXPECT_EQ(kv_types_from_name("q8_0/", DType::kBF16), KvTypes(DType::kQ8_0, DType::kBF16));
  EXPECT_EQ(kv_types_from_name("Q8_0", DType::kBF16), KvTypes(DType::kQ8_0));
}

TEST(KvTypes, OthersAreRefused) {
  for (const char* name : {"q5_0", "q8_0/q9", "f16/f16/f16", " f16", "i32"}) {
    try {
      kv_types_from_name(name, DType::kF32, "draft KV type");
      ADD_FAILURE() << name;
    } catch (const Error& error) { EXPECT_THAT(error.what(), HasSubstr("draft KV type")); }
  }
}

}  // namespace
}  // namespace sx
