// Rounds of a request do not allocate. Has the counting operator new, so it belongs into one file of a program.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "specextend/specextend.h"
#include "support/counting_new.h"
#include "support/random_text.h"

namespace sx::testing {

inline void expect_rounds_do_not_allocate(Engine& engine, float temperature, int tokens, const std::string& what) {
  GenerateOptions o;
  o.max_tokens = tokens, o.ignore_end = true, o.sampling.temperature = temperature, o.sampling.repeat_penalty = 1.1f;
  long first = -1, last = -1;
  o.on_round = [&](const RoundInfo&) {
    last = g_allocations.load();
    if (first < 0) first = last;
  };
  engine.start()->generate(random_text(80, 4), o);
  EXPECT_EQ(first, last) << what << " " << temperature;
  EXPECT_GT(first, 0);
}

}  // namespace sx::testing
