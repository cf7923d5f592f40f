// EXPECT-style check that something throws sx::Error whose message holds all the given parts.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>

#include "base/error.h"

namespace sx::testing {

inline void expect_error(const std::function<void()>& body, std::initializer_list<std::string> parts,
                         const std::string& what = "") {
  try {
    body();
    ADD_FAILURE() << "nothing was thrown " << what;
  } catch (const Error& error) {
    for (const auto& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "'" << part << "' is not in the message: " << error.what() << ' ' << what;
    }
  }
}

}  // namespace sx::testing
