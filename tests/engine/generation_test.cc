// Requests alone: what they refuse, what they take of an accepted path, and why they end.
#include "engine/generation.h"

#include "engine/parts_fixture.h"
#include "specextend/error.h"

namespace sx {
namespace {

class GenerationTest : public testing::PartsTest {
 protected:
  GenerationTest() : text_(parts_) {}
  // A path of the pending token and `accepted`, after which `next` was chosen.
  RoundSlot& slot_with(Generation& g, std::initializer_list<Token> accepted, Token next) {
    g.begin_tree(slot_, 6);
    slot_.result.path = {0};
    for (Token t : accepted) slot_.result.path.push_back(slot_.tree->add(slot_.result.path.back(), t, 0));
    slot_.result.next = next;
    slot_.broken.assign(size_t(slot_.tree->size()), 0);
    return slot_;
  }
  std::string refusal(std::vector<Token> prompt, const GenerateOptions& options) {
    Request r;
    r.prompt = prompt, r.options = &options;
    try {
      check_request(r, parts_);
    } catch (const Error& error) { return error.what(); }
    return "";
  }

  CachedText text_;
  RoundSlot slot_;
  const std::vector<Token> prompt_ = {7};
};

TEST_F(GenerationTest, WrongRequestsAreNamed) {
  EXPECT_EQ(refusal({7}, options_), "");
  EXPECT_NE(refusal({}, options_).find("prompt is empty"), std::string::npos);
  EXPECT_NE(refusal({-1}, options_).find("token -1"), std::string::npos);
  EXPECT_NE(refusal(std::vector<Token>(size_t(kContext) + 1, 7), options_).find("context holds 96"), std::string::npos);
  GenerateOptions wrong = options_;
  wrong.sampling.top_p = 0;
  EXPECT_NE(refusal({7}, wrong).find("top_p"), std::string::npos);
}

TEST_F(GenerationTest, TakesTheAcceptedPathAndTheNextToken) {
  const auto g = request(text_, prompt_, options_, suffix());
  std::vector<int> depths;
  EXPECT_EQ(g->take(slot_with(*g, {8, 9}, 10), nullptr), 3);
  EXPECT_EQ(text_.tokens(), (std::vector<Token>{7, 8, 9, 10}));
  EXPECT_FALSE(g->done());
}

TEST_F(GenerationTest, EndsAtItsLimitInTheMiddleOfAPath) {
  options_.max_tokens = 2;
  const auto g = request(text_, prompt_, options_, suffix());
  EXPECT_EQ(g->take(slot_with(*g, {8, 9}, 10), nullptr),
            2);  // the second accepted token is the last: its cell is not needed
  const GenerateResult result = g->finish();
  EXPECT_EQ(result.reason, FinishReason::kLength);
  EXPECT_EQ(result.tokens, (std::vector<Token>{8, 9}));
}

TEST_F(GenerationTest, StopTokensAreNotPartOfTheText) {
  options_.stop_tokens = {9};
  const auto g = request(text_, prompt_, options_, suffix());
  EXPECT_EQ(g->take(slot_with(*g, {8, 9}, 10), nullptr), 2);
  const GenerateResult result = g->finish();
  EXPECT_EQ(result.reason, FinishReason::kEnd);
  EXPECT_EQ(result.tokens, (std::vector<Token>{8}));
}

TEST_F(GenerationTest, BrokenLogitsEndARequestWhereTheyMatter) {
  const auto g = request(text_, prompt_, options_, suffix());
  RoundSlot& slot = slot_with(*g, {8, 9}, 10);
  slot.broken[1] = 1;  // what was chosen after token 8
  EXPECT_EQ(g->take(slot, nullptr), 2);
  EXPECT_TRUE(g->done() && g->models_fault());
  EXPECT_NE(g->error().find("position 2"), std::string::npos);
  EXPECT_EQ(g->finish().tokens, (std::vector<Token>{8}));
}

TEST_F(GenerationTest, CancellingIsAskedForAndStays) {
  int asked = 0;
  options_.cancelled = [&] { return ++asked > 2; };
  const auto g = request(text_, prompt_, options_, off());
  const int before = asked;
  EXPECT_EQ(before, 1);
  EXPECT_FALSE(g->poll_cancelled());
  EXPECT_TRUE(g->poll_cancelled());
  EXPECT_TRUE(g->poll_cancelled());
  EXPECT_EQ(asked, 3);  // a request that has ended does not ask again
}

TEST_F(GenerationTest, DraftsAreNoLongerThanTheAnswer) {
  options_.max_tokens = 3;
  const auto g = request(text_, prompt_, options_, suffix());
  g->begin_tree(slot_, 4);
  const DraftTask task = g->draft_task(slot_, 4);
  EXPECT_EQ(task.limits.nodes, 4);
  EXPECT_EQ(task.limits.depth, 2);  // the third token is chosen, not drafted
  EXPECT_EQ(task.text.back(), 7);
  EXPECT_EQ(slot_.tree->size(), 1);
}

}  // namespace
}  // namespace sx
