// The sample head of docs/extending.md: it proposes the tokens that have followed the same token before.
#pragma once

namespace sx::testing {

// Makes "bigram" a value of setting drafter. Call it once, before an engine is opened.
void register_bigram_head();

}  // namespace sx::testing
