// What a setting that is refused says.
#pragma once
#include <string>
#include <string_view>

#include "base/error.h"
#include "speculative/config/config.h"

namespace sx::testing {

template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& error) { return error.what(); }
  return "";
}

inline std::string set_error(std::string_view name, std::string_view value) {
  SpecConfig config;
  return error_of([&] { apply_setting(config, name, value); });
}

// The configuration with a name for the draft model it needs, if it needs one.
inline SpecConfig with_model(SpecConfig config) {
  if (config.needs_model()) config.draft_model = "draft.gguf";
  return config;
}

}  // namespace sx::testing
