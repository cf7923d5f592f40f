// Arguments that a model writes other than in JSON: what their schemas make of them, and the grammars that force them.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/tool_syntax.h"

namespace sx::server {

// JSON that a model has written: discarded where it is broken, or nested so deeply that it would exhaust the stack of
// whoever walks it.
nlohmann::ordered_json parse_written(std::string_view text);

// The value of an argument written as `text` without quotes. A text is taken as it is where the schema of `key` in
// `parameters` allows texts; otherwise it is JSON, or what Python writes for true, false and null; what is neither
// stays a text.
nlohmann::ordered_json argument_value(std::string_view text, const nlohmann::ordered_json& parameters,
                                      const std::string& key);

// Whether such a value is a text whatever it looks like.
bool is_text_argument(const nlohmann::ordered_json& parameters, const std::string& key);

// GBNF of arguments that are written one by one between marks, in the schema's order, those that are not required may
// be missing; begins with a space. Rules for values that are JSON go to `schemas`, named `rule`-0 and so on. Throws
// sx::Error naming the function and the argument that cannot be forced.
std::string parameters_grammar(const CallSyntax& syntax, const std::string& function,
                               const nlohmann::ordered_json& parameters, const std::string& rule,
                               std::vector<std::pair<std::string, std::string>>& schemas);
// The rules that these use for texts, the first called `name`: any that does not have `end`, or its first tag, in it.
std::string raw_text_rules(std::string_view end, std::string_view name = "Text");

// GBNF of arguments that are written all at once in a notation other than JSON, with their brackets. Further rules,
// which begin with `rule`, go to `rules`. Throws as parameters_grammar does.
std::string arguments_grammar(const CallSyntax& syntax, const std::string& function,
                              const nlohmann::ordered_json& parameters, const std::string& rule, std::string& rules,
                              std::vector<std::pair<std::string, std::string>>& schemas);
// The rules that arguments_grammar uses for texts, and for values of which nothing is known.
std::string notation_rules(const CallSyntax& syntax);

// `text` as a literal of GBNF; the control tokens of the vocabulary stand for themselves where a row's marks are such
// tokens.
std::string mark_literal(const CallSyntax& syntax, std::string_view text);

}  // namespace sx::server
