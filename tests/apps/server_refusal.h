// What a refused request names, for tests of requests.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "server/error.h"

namespace sx::server {

// The field an error names, or "none".
template <typename Parse>
std::string culprit(const Parse& parse) {
  try {
    parse();
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status, 400);
    EXPECT_EQ(e.type, "invalid_request_error");
    EXPECT_STRNE(e.what(), "");
    return e.param;
  }
  return "none";
}

}  // namespace sx::server
