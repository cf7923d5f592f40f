// Taps of a pass for several readers: all that any of them wants is kept once, and each sees its own in its order.
#include "model/taps.h"

#include <gtest/gtest.h>

namespace sx {
namespace {

TEST(Taps, EachReaderSeesItsOwn) {
  const TapSpec first{{7, 1, 1}, {}}, second{{1, 2}, {4, 6}}, third{{}, {0, 4}};
  TapSpec kept;
  for (const TapSpec& wanted : {first, second, third}) add_taps(kept, wanted);
  EXPECT_EQ(kept.hidden, (std::vector<int>{1, 2, 7}));
  EXPECT_EQ(kept.query, (std::vector<int>{0, 4, 6}));
  const float states[3] = {}, queries[3] = {}, logits = 0;
  const float *const hidden[] = {&states[0], &states[1], &states[2]}, *const query[] = {&queries[0], &queries[1],
                                                                                        &queries[2]};
  const StepOutputs pass{&logits, hidden, query};
  const auto expect = [&](const TapSpec& wanted, std::vector<const float*> seen_hidden,
                          std::vector<const float*> seen_query) {
    TapView view(kept, wanted);
    const StepOutputs& seen = view.of(pass);
    EXPECT_EQ(seen.logits, &logits);
    EXPECT_EQ(std::vector<const float*>(seen.hidden.begin(), seen.hidden.end()), seen_hidden);
    EXPECT_EQ(std::vector<const float*>(seen.query.begin(), seen.query.end()), seen_query);
  };
  expect(first, {hidden[2], hidden[0], hidden[0]}, {});
  expect(second, {hidden[0], hidden[1]}, {query[1], query[2]});
  expect(third, {}, {query[0], query[1]});
  expect({}, {}, {});
}

TEST(Taps, APassWithNothingElseIsSeenAsItIs) {
  const float state = 0;
  const float* const hidden[] = {&state, &state};
  const StepOutputs pass{nullptr, hidden, {}};
  TapView same({{2, 5}, {}}, {{2, 5}, {}});
  EXPECT_EQ(&same.of(pass), &pass);
}

}  // namespace
}  // namespace sx
