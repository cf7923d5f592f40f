// Suggestions for misspelt words.
#include <specextend/suggest.h>

#include <gtest/gtest.h>

#include <vector>

namespace sx {
namespace {

const std::vector<std::string> kFlags{
    "--spec", "--spec-draft-n-max", "--temp", "--temperature", "--top-p", "--top-k", "-m", "--model", "--seed"};

TEST(Suggest, DistanceCountsSingleMistakes) {
  EXPECT_EQ(edit_distance("spec", "spec"), 0);
  EXPECT_EQ(edit_distance("sepc", "spec"), 1);  // neighbours swapped
  EXPECT_EQ(edit_distance("spc", "spec"), 1);
  EXPECT_EQ(edit_distance("specc", "spec"), 1);
  EXPECT_EQ(edit_distance("spac", "spec"), 1);
  EXPECT_EQ(edit_distance("", "spec"), 4);
  EXPECT_EQ(edit_distance("spec", ""), 4);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(Suggest, NearestOfTheKnown) {
  EXPECT_EQ(nearest_word("--sepc", kFlags), "--spec");
  EXPECT_EQ(nearest_word("--tempreature", kFlags), "--temperature");
  EXPECT_EQ(nearest_word("--spec-drft-n-max", kFlags), "--spec-draft-n-max");
  EXPECT_EQ(nearest_word("--sead", kFlags), "--seed");
  EXPECT_EQ(did_you_mean("--sepc", kFlags), "; did you mean --spec?");
}

TEST(Suggest, NothingWhereNothingIsNear) {
  EXPECT_EQ(nearest_word("--frobnicate", kFlags), "");
  EXPECT_EQ(nearest_word("-x", kFlags), "");  // any letter would do
  EXPECT_EQ(nearest_word("--", kFlags), "");
  EXPECT_EQ(nearest_word("", kFlags), "");
  EXPECT_EQ(nearest_word(std::string(1 << 20, 'a'), kFlags), "");
  EXPECT_EQ(nearest_word("--sepc", {}), "");
  EXPECT_EQ(did_you_mean("--frobnicate", kFlags), "");
}

}  // namespace
}  // namespace sx
