// The settings of draft caches: what they take, and what does not go together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "setting_error.h"

namespace sx {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::set_error;
using testing::with_model;

TEST(CacheSettings, Layers) {
  SpecConfig config;
  const auto set_to = [&](const char* name, const char* value) {
    apply_setting(config, name, value);
    return setting_value(config, name);
  };
  EXPECT_EQ(set_to("layers", "all"), "all");
  EXPECT_TRUE(config.cache.all_layers);
  EXPECT_EQ(set_to("layers", "3,-1"), "3,-1");
  EXPECT_EQ(config.cache.layers, (std::vector<int>{3, -1}));
  EXPECT_FALSE(config.cache.all_layers);
  EXPECT_EQ(set_to("layers", "last"), "-1");
  EXPECT_EQ(config.cache.layers, std::vector<int>{-1});
  EXPECT_EQ(set_to("layers", "auto"), "auto");
  EXPECT_TRUE(config.cache.layers.empty());
  for (const char* wrong :
       {"", "first", "1,", ",1", "1,all", "all,1", "last,1", "auto,1", "1.5", "1024", "-1025", " 1"})
    EXPECT_THAT(set_error("layers", wrong), HasSubstr("layers")) << wrong;
}

// A draft cache that cannot be is refused by the name of what is wrong with it.
TEST(CacheSettings, CombinationsThatCannotBe) {
  using Settings = std::vector<std::pair<const char*, const char*>>;
  const auto error_with = [](const char* preset, const Settings& settings) {
    SpecConfig config = with_model(preset_config(preset));
    for (const auto& [name, value] : settings) apply_setting(config, name, value);
    return error_of([&] { check_config(config); });
  };
  for (const char* cache : {"window", "streaming", "retrieval", "once", "quest", "snap", "prune", "random"}) {
    SCOPED_TRACE(cache);
    for (const char* preset : {"sd", "eagle3", "fuse"}) EXPECT_EQ(error_with(preset, {{"cache", cache}}), "") << preset;
    const bool asks_draft =
        cache == std::string("once") || cache == std::string("quest") || cache == std::string("snap");
    for (const char* preset : {"self-skip", "self-suffix"})  // the target as its own draft
      if (asks_draft)
        EXPECT_THAT(error_with(preset, {{"cache", cache}}),
                    AllOf(HasSubstr("cache"), HasSubstr(cache), HasSubstr(preset)));
      else EXPECT_EQ(error_with(preset, {{"cache", cache}}), "");
    for (const char* preset : {"ngram", "suffix"})
      EXPECT_THAT(error_with(preset, {{"cache", cache}}),
                  AllOf(HasSubstr("cache"), HasSubstr(cache), HasSubstr(preset)));
    EXPECT_EQ(error_with("sd", {{"cache", cache}, {"budget", "64"}, {"chunk", "64"}}), "");
    EXPECT_THAT(error_with("sd", {{"cache", cache}, {"budget", "64"}, {"chunk", "65"}}),
                AllOf(HasSubstr("chunk"), HasSubstr("65"), HasSubstr("64")));
  }
  EXPECT_EQ(error_with("ngram", {{"budget", "64"}}), "") << "nobody reads it";
  for (const char* preset : {"self-skip", "self-suffix", "magicdec"})
    EXPECT_EQ(error_with(preset, {{"cache", "verified"}}), "") << preset;
  for (const char* preset : {"sd", "eagle3", "fuse", "mtp"})  // their heads are not the target's
    EXPECT_THAT(error_with(preset, {{"cache", "verified"}}),
                AllOf(HasSubstr("cache"), HasSubstr("verified"), HasSubstr(preset)));
}

}  // namespace
}  // namespace sx
