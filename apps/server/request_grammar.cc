// What binds the text of an answer: grammars, schemas, regular expressions, choices.
#include <fmt/format.h>

#include <algorithm>

#include "server/request_parts.h"

namespace sx::server {

namespace {

constexpr size_t kMostChoices = 2048;  // each is a way to read the text; grammars may have no more at once

// The grammar that a function makes, whose complaints are the client's fault.
template <class Make>
std::string made(Make make, const char* param) {
  try {
    return make();
  } catch (const Error& e) { throw bad_request(e.what(), param); }
}

std::string grammar_of(const Json& schema, const char* param, const Limits& limits) {
  if (!schema.is_object()) throw bad_request(fmt::format("the schema in '{}' must be an object", param), param);
  const std::string text = schema.dump();
  if (text.size() > limits.schema_bytes)
    throw bad_request(fmt::format("the schema in '{}' is longer than {} bytes", param, limits.schema_bytes), param);
  return made([&] { return json_schema_to_gbnf(text); }, param);
}

// The schema that 'response_format' asks for; none: any text.
std::string grammar_of_format(const Json& format, const Limits& limits) {
  constexpr const char* kName = "response_format";
  const Json* type = format.is_object() ? field(format, "type") : nullptr;
  if (is_text(type, "text")) return {};
  if (is_text(type, "json_object")) {
    const Json* schema = field(format, "schema");  // as in llama.cpp
    return grammar_of(schema ? *schema : Json{{"type", "object"}}, kName, limits);
  }
  if (!is_text(type, "json_schema"))
    throw bad_request("'response_format' must have the type text, json_object or json_schema", kName);
  const Json* inner = field(format, "json_schema");
  const Json* schema = inner && inner->is_object() ? field(*inner, "schema") : nullptr;
  if (!schema) throw bad_request("'response_format' must have 'json_schema' with a 'schema'", kName);
  return grammar_of(*schema, kName, limits);
}

std::string bounded_text(const Json& value, const char* param, const Limits& limits) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty())
    throw bad_request(fmt::format("'{}' must be a string that is not empty", param), param);
  std::string text = value.get<std::string>();
  if (text.size() > limits.grammar_bytes)
    throw bad_request(fmt::format("'{}' is longer than {} bytes", param, limits.grammar_bytes), param);
  return text;
}

std::string grammar_of_choices(const Json& choices, const char* param, const Limits& limits) {
  const auto is_string = [](const Json& one) { return one.is_string(); };
  if (!choices.is_array() || choices.empty() || choices.size() > kMostChoices ||
      !std::ranges::all_of(choices, is_string))
    throw bad_request(fmt::format("'{}' must be a list of 1 to {} strings", param, kMostChoices), param);
  std::string rule;
  for (const Json& one : choices)
    rule += (rule.empty() ? "root ::= " : " | ") + gbnf_quote(one.get_ref<const std::string&>());
  return bounded_text(rule, param, limits);
}

// vLLM's kinds: a schema, also as the text of one; a regular expression; choices; a grammar.
std::string grammar_of_kind(std::string_view kind, const Json& value, const char* param, const Limits& limits) {
  if (kind == "json") {
    if (!value.is_string()) return grammar_of(value, param, limits);
    Json schema;
    try {
      schema = parse_object(bounded_text(value, param, limits));
    } catch (const ApiError& e) { throw bad_request(e.what(), param); }
    return grammar_of(schema, param, limits);
  }
  if (kind == "choice") return grammar_of_choices(value, param, limits);
  const std::string text = bounded_text(value, param, limits);
  return kind == "regex" ? made([&] { return regex_to_gbnf(text); }, param) : text;
}

std::string grammar_of_structure(const Json& given, const Limits& limits) {
  constexpr const char* kName = "structured_outputs";
  if (!given.is_object()) throw bad_request("'structured_outputs' must be an object", kName);
  std::string grammar;
  for (const auto& [kind, value] : given.items()) {
    const bool known = kind == "json" || kind == "regex" || kind == "choice" || kind == "grammar";
    if (value.is_null() || (!known && is_off(&value))) continue;
    if (!known && kind != "json_object")
      throw bad_request(
          fmt::format("'structured_outputs' takes json, json_object, regex, choice and grammar, not '{}'", kind),
          kName);
    if (!known && !value.is_boolean())
      throw bad_request("'json_object' of 'structured_outputs' must be true or false", kName);
    if (!grammar.empty()) throw bad_request("'structured_outputs' must have one kind only", kName);
    grammar = known ? grammar_of_kind(kind, value, kName, limits) : grammar_of(Json{{"type", "object"}}, kName, limits);
  }
  return grammar;
}

}  // namespace

bool read_grammar(const Json& body, const Limits& limits, CompletionRequest& request) {
  const auto bind = [&](std::string grammar, const char* param) {
    if (grammar.empty()) return;
    if (!request.options.grammar.empty())
      throw bad_request(
          "only one of 'grammar', 'json_schema', 'response_format' and 'structured_outputs' can bind the text", param);
    request.options.grammar = std::move(grammar);
    request.grammar_field = param;
  };
  if (const Json* format = field(body, "response_format")) bind(grammar_of_format(*format, limits), "response_format");
  if (const Json* schema = field(body, "json_schema"); schema && !is_text(schema, ""))
    bind(grammar_of(*schema, "json_schema", limits), "json_schema");
  if (const Json* grammar = field(body, "grammar"); grammar && !is_text(grammar, ""))
    bind(bounded_text(*grammar, "grammar", limits), "grammar");
  if (const Json* given = field(body, "structured_outputs"))
    bind(grammar_of_structure(*given, limits), "structured_outputs");
  constexpr std::pair<const char*, const char*> kGuided[] = {
      {"guided_json", "json"}, {"guided_regex", "regex"}, {"guided_choice", "choice"}, {"guided_grammar", "grammar"}};
  for (const auto& [name, kind] : kGuided)  // vLLM's names until 2025
    if (const Json* value = field(body, name); value && !is_text(value, ""))
      bind(grammar_of_kind(kind, *value, name, limits), name);
  return !request.options.grammar.empty();
}

}  // namespace sx::server
