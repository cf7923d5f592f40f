// Which drafters go inside which, and who looks earlier texts up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "setting_error.h"

namespace sx {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::with_model;

std::string error_with(const char* preset, std::initializer_list<std::pair<const char*, const char*>> settings) {
  SpecConfig config = preset_config(preset);
  for (const auto& [name, value] : settings) apply_setting(config, name, value);
  return error_of([&] { check_config(with_model(config)); });
}

TEST(Check, DraftersInsideDrafters) {
  EXPECT_EQ(error_with("sd", {{"inner", "ngram"}}), "");
  EXPECT_EQ(error_with("self-skip", {{"inner", "suffix"}}), "");
  EXPECT_EQ(error_with("magicdec", {{"inner", "model"}}), "");
  EXPECT_THAT(error_with("sd", {{"inner", "model"}}), AllOf(HasSubstr("inner"), HasSubstr("one draft model")));
  EXPECT_THAT(error_with("specextend", {{"inner", "suffix"}}), AllOf(HasSubstr("opt-tree"), HasSubstr("chain")));
  EXPECT_THAT(error_with("fuse", {{"inner", "suffix"}}), AllOf(HasSubstr("inner"), HasSubstr("fuse")));
  EXPECT_THAT(error_with("ngram", {{"inner", "suffix"}}), AllOf(HasSubstr("inner"), HasSubstr("ngram")));
  EXPECT_THAT(error_with("staged", {{"inner", "ngram"}, {"ngram-min", "4"}}), HasSubstr("ngram-min"));
  EXPECT_THAT(error_with("triforce", {{"cache", "once"}}), HasSubstr("once"))
      << "the target's own queries are not kept";
}

TEST(Check, StoresOfEarlierTexts) {
  for (const char* preset : {"suffix", "fuse", "self-suffix", "staged"}) {
    EXPECT_EQ(error_with(preset, {{"store", "1000"}}), "") << preset;
    EXPECT_EQ(error_with(preset, {{"store-file", "corpus.txt"}}), "") << preset;
  }
  for (const char* preset : {"ngram", "sd", "specextend"}) {
    EXPECT_THAT(error_with(preset, {{"store", "1000"}}), AllOf(HasSubstr("setting store "), HasSubstr("suffix")))
        << preset;
    EXPECT_THAT(error_with(preset, {{"store-file", "corpus.txt"}}), AllOf(HasSubstr("store-file"), HasSubstr("suffix")))
        << preset;
  }
}

}  // namespace
}  // namespace sx
