// Converts JSON to template values.
#pragma once
#include <nlohmann/json.hpp>

#include "text/jinja/value.h"

namespace sx::jinja {

// Fails for nesting deeper than a few hundred levels and for integers beyond 64 signed bits.
Value value_from_json(const nlohmann::ordered_json& json, int depth = 0);

}  // namespace sx::jinja
