// Rounds alone: what one leaves in the text, in the KV cache and in the requests.
#include "engine/round.h"

#include "engine/parts_fixture.h"

namespace sx {
namespace {

class RoundTest : public testing::PartsTest {
 protected:
  RoundTest() : round_(parts_) {}
  void run(Generation& g) {
    Generation* const one = &g;
    round_.run(std::span(&one, 1), {}, 1);
  }
  // Runs the prompt in pieces, then rounds until the request ends; returns the number of rounds.
  int run_all(Generation& g) {
    int rounds = 0;
    for (; !g.done(); ++rounds) {
      if (g.decoding()) {
        run(g);
        continue;
      }
      const PromptPiece piece{&g, std::min(parts_.chunk, int(g.waiting().size()))};
      round_.run({}, std::span(&piece, 1), 1);
    }
    return rounds;
  }

  Round round_;
};

TEST_F(RoundTest, APlainRoundAddsOneToken) {
  CachedText text(parts_);
  const std::vector<Token> prompt = {7};
  const auto g = request(text, prompt, options_, off());
  ASSERT_TRUE(g->decoding());
  for (int i = 1; i <= 3; ++i) {
    run(*g);
    EXPECT_EQ(text.length(), i);
    EXPECT_EQ(int(text.tokens().size()), i + 1);  // the last one is pending
    EXPECT_EQ(sequences_.uncommitted(text.seq()), 0);
  }
}

TEST_F(RoundTest, AcceptedNodesAreCommittedTogether) {
  const std::vector<Token> prompt = {7, 9, 11, 7, 9, 11, 7, 9, 11, 7, 9};
  options_.max_tokens = 60;
  std::vector<Token> plain;
  int plain_rounds = 0;
  for (Speculation* spec : {&off(), &suffix()}) {
    CachedText text(parts_);
    const auto g = request(text, prompt, options_, *spec);
    const int rounds = run_all(*g);
    const GenerateResult result = g->finish();
    EXPECT_EQ(result.reason, FinishReason::kLength);
    if (spec == &off()) {
      plain = result.tokens, plain_rounds = rounds;
      continue;
    }
    EXPECT_EQ(result.tokens, plain);
    EXPECT_GT(result.spec.accepted, 0);
    EXPECT_EQ(rounds, plain_rounds - int(result.spec.accepted));
  }
}

// A prompt's piece is part of the round of another request and changes nothing of it.
TEST_F(RoundTest, PromptsRunBesideDecoding) {
  const std::vector<Token> one = {7}, two = {5, 6, 7, 8, 9, 10};
  CachedText first(parts_), second(parts_), again(parts_);
  const auto a = request(first, one, options_, off()), b = request(second, two, options_, off());
  Generation* const decoding = a.get();
  PromptPiece piece{b.get(), 3};
  round_.run(std::span(&decoding, 1), std::span(&piece, 1), 2);
  EXPECT_EQ(first.length(), 1);
  EXPECT_EQ(second.length(), 3);
  EXPECT_FALSE(b->decoding());
  EXPECT_EQ(b->waiting().size(), 2u);  // the last token of a prompt is pending
  piece.rows = 2;
  round_.run(std::span(&decoding, 1), std::span(&piece, 1), 2);
  EXPECT_TRUE(b->decoding());
  const auto alone = request(again, one, options_, off());
  run(*alone);
  run(*alone);
  EXPECT_EQ(first.tokens(), again.tokens());
}

TEST_F(RoundTest, CancelledRequestsLeaveIt) {
  CachedText first(parts_), second(parts_);
  bool stop = false;
  GenerateOptions cancelled = options_;
  cancelled.cancelled = [&] { return stop; };
  const std::vector<Token> prompt = {7};
  const auto a = request(first, prompt, cancelled, off()), b = request(second, prompt, options_, off());
  Generation* const both[] = {a.get(), b.get()};
  round_.run(both, {}, 2);
  stop = true;
  round_.run(both, {}, 2);
  EXPECT_TRUE(a->done());
  EXPECT_EQ(a->finish().reason, FinishReason::kCancelled);
  EXPECT_EQ(first.length(), 1);
  EXPECT_EQ(second.length(), 2);
}

TEST_F(RoundTest, AFullContextEndsARequest) {
  CachedText text(parts_);
  std::vector<Token> prompt(size_t(kContext) - 2, 7);
  const auto g = request(text, prompt, options_, suffix());
  run_all(*g);
  EXPECT_EQ(g->finish().reason, FinishReason::kContext);
  EXPECT_EQ(text.length(), kContext);
}

}  // namespace
}  // namespace sx
