// Grammars that an answer must follow (GenerateOptions::grammar), in GBNF, and how a JSON schema becomes one.
//
// Thread safety: these are functions without state; any thread may call them. Errors throw sx::Error.
#pragma once
#include <specextend/error.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace sx {

class Engine;

// The grammar of the JSON texts that a JSON schema describes, between two fixed texts. Throws sx::Error naming the
// keyword that is not supported, or what is too large.
std::string json_schema_to_gbnf(std::string_view schema_json, std::string_view before = {},
                                std::string_view after = {});
// A grammar with several JSON values. `rules` is GBNF that ends with a line break. It may use one rule for each of
// `schemas`, by its name, which begins with a capital letter and stands for the JSON texts that the schema describes.
std::string json_schemas_to_gbnf(std::string_view rules, std::span<const std::pair<std::string, std::string>> schemas);
// The grammar of the texts that a regular expression describes from their beginning to their end: characters, classes,
// groups, alternatives, repetitions. Throws sx::Error naming what else is in it.
std::string regex_to_gbnf(std::string_view pattern);
std::string gbnf_quote(std::string_view text);  // `text` as a GBNF literal, quotes included

// Compiles a grammar for requests to `engine`, which then need not: while the caller holds what this gives, the engine
// finds it by its text. Any thread may do so, also while others use the engine. Throws sx::Error about the grammar.
std::shared_ptr<const void> prepare_grammar(Engine& engine, const std::string& gbnf);
// The same where it is compiled already; null: it is not.
std::shared_ptr<const void> prepared_grammar(Engine& engine, const std::string& gbnf);

}  // namespace sx
