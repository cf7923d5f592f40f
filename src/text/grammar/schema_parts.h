// Parts of the translation of JSON schemas, internal to it. `where` is the place in the schema, for error messages.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace sx {

using Schema = nlohmann::ordered_json;

// Whether a keyword restricts what a text may be, and is supported.
bool is_assertion(const std::string& keyword);
void refuse_unsupported(const Schema& schema, const std::string& where);

// A schema that holds where both hold. `allOf` of a and b is written where only a visit of the result can decide.
Schema merge_schemas(const Schema& a, const Schema& b, const std::string& where);

// Numbers between bounds; without a bound on a side, up to a limited number of digits. Empty: there are none.
struct NumberBounds {
  std::optional<int64_t> least, most;
  bool above_least = false, below_most = false;  // for numbers with a fraction: the bound itself is out
};
std::string gbnf_of_integers(const NumberBounds& bounds);
std::string gbnf_of_numbers(const NumberBounds& bounds);

// What stands between the quotes of a JSON string whose text a regular expression finds something in. Uses the rule
// `char`.
std::string gbnf_of_pattern(const std::string& pattern, const std::string& where);

}  // namespace sx
