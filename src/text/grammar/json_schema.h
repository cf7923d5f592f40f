// JSON schemas as grammars. Every text of the grammar is a JSON text the schema accepts; the reverse need not hold:
// properties come in the schema's order, there is at most one space or line break where JSON allows white space,
// numbers have a limited number of digits, and properties or items that a schema merely does not forbid are not made
// up. oneOf is read as anyOf; formats other than date, time, date-time and uuid are comments, as the standard has it.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace sx {

// GBNF of `before`, a JSON text, `after`. Throws sx::Error naming the place in the schema that is wrong or not
// supported.
std::string gbnf_of_schema(std::string_view schema_json, std::string_view before = {}, std::string_view after = {});

// `rules` (GBNF, with a line break after the last) and one more rule for each of `schemas`, by its name: the JSON texts
// that the schema describes. Names begin with a capital letter; those of the rules made here do not.
std::string gbnf_of_schemas(std::string_view rules, std::span<const std::pair<std::string, std::string>> schemas);

// GBNF of the texts that a regular expression describes from their beginning to their end.
std::string gbnf_of_regex(const std::string& pattern);

}  // namespace sx
