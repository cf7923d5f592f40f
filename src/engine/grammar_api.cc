// The public door to grammars, and to those from JSON schemas and regular expressions.
#include <specextend/grammar.h>

#include "text/grammar/gbnf.h"
#include "text/grammar/json_schema.h"

namespace sx {

std::string json_schema_to_gbnf(std::string_view schema_json, std::string_view before, std::string_view after) {
  return gbnf_of_schema(schema_json, before, after);
}

std::string json_schemas_to_gbnf(std::string_view rules, std::span<const std::pair<std::string, std::string>> schemas) {
  return gbnf_of_schemas(rules, schemas);
}

std::string regex_to_gbnf(std::string_view pattern) { return gbnf_of_regex(std::string(pattern)); }

std::string gbnf_quote(std::string_view text) { return gbnf_literal(text); }

}  // namespace sx
