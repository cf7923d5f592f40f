#include "server/tool_schema.h"

#include <fmt/format.h>
#include <specextend/specextend.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sx::server {

using Json = nlohmann::ordered_json;

namespace {

constexpr int kMaxDepth = 64;

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first == std::string_view::npos ? std::string_view() : text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

const Json* member(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? nullptr : &*found;
}

// What a schema is once its references are followed; nothing if one leads nowhere.
const Json* resolved(const Json& schema, const Json& root) {
  const Json* at = &schema;
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    const Json* ref = member(*at, "$ref");
    if (!ref) return at;
    if (!ref->is_string() || !ref->get_ref<const std::string&>().starts_with("#/")) return nullptr;
    try {
      at = &root.at(Json::json_pointer(ref->get_ref<const std::string&>().substr(1)));
    } catch (const Json::exception&) {
      return nullptr;
    }
  }
  return nullptr;
}

// Which kinds of values a schema allows.
struct Kinds {
  bool text = false, null = false, other = false;
  void add(const Kinds& more) { text |= more.text, null |= more.null, other |= more.other; }
};

Kinds kind_of_value(const Json& value) { return {value.is_string(), value.is_null(), !value.is_string() && !value.is_null()}; }

Kinds kinds_of(const Json& given, const Json& root, int depth = 0) {
  constexpr Kinds kAll{true, true, true};
  const Json* found = resolved(given, root);
  if (!found || !found->is_object() || depth > kMaxDepth) return kAll;
  const Json& schema = *found;
  Kinds kinds;
  if (const Json* value = member(schema, "const")) return kind_of_value(*value);
  if (const Json* type = member(schema, "type")) {
    for (const Json& one : type->is_array() ? *type : Json::array({*type}))
      kinds.add({one == "string", one == "null", one != "string" && one != "null"});
    return kinds;
  }
  if (const Json* values = member(schema, "enum"); values && values->is_array()) {
    for (const Json& value : *values) kinds.add(kind_of_value(value));
    return kinds;
  }
  for (const char* key : {"anyOf", "oneOf", "allOf"})
    if (const Json* list = member(schema, key); list && list->is_array() && !list->empty()) {
      for (const Json& one : *list) kinds.add(kinds_of(one, root, depth + 1));
      return kinds;
    }
  return kAll;
}

const Json* schema_of(const Json& parameters, const std::string& key) {
  const Json* properties = member(parameters, "properties");
  return properties ? member(*properties, key.c_str()) : nullptr;
}

// The texts of a schema as GBNF: those it lists, or any.
std::string raw_text_grammar(const Json& schema, const std::string& where, std::string_view end) {
  const Json* values = member(schema, "enum");
  const Json* only = member(schema, "const");
  if (!values && !only) {
    // Most of these are harmless to a call that is not forced, but a grammar promises that they hold.
    for (const char* key : {"pattern", "minLength", "maxLength"})
      if (member(schema, key))
        throw Error(fmt::format("{}: '{}' cannot be forced in the form in which this model writes calls", where, key));
    return "Text";
  }
  std::string out;
  for (const Json& value : only ? Json::array({*only}) : *values) {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (text.find(trimmed(end)) != std::string::npos) throw Error(fmt::format("{}: a value has '{}' in it", where, trimmed(end)));
    out += (out.empty() ? "" : " | ") + gbnf_quote(text);
  }
  return "(" + out + ")";
}

}  // namespace

Json parse_written(std::string_view text) {
  bool deep = false;
  const auto bounded = [&](int depth, Json::parse_event_t, Json&) {
    deep = deep || depth > kMaxDepth;
    return !deep;
  };
  Json json = Json::parse(text, bounded, false);
  return deep ? Json(Json::value_t::discarded) : json;
}

Json argument_value(std::string_view text, const Json& parameters, const std::string& key) {
  const Json* schema = schema_of(parameters, key);
  const Kinds kinds = kinds_of(schema ? *schema : Json(), parameters);
  const std::string_view word = trimmed(text);
  if (kinds.text && !(kinds.null && (word == "null" || word == "None"))) {
    if (!kinds.other) return std::string(text);
    // Anything may come: what is JSON beyond doubt is taken as such.
    Json json = parse_written(word);
    return json.is_discarded() || json.is_string() ? Json(std::string(text)) : json;
  }
  if (word == "None") return nullptr;
  if (word == "True" || word == "False") return word == "True";
  Json json = parse_written(word);
  return json.is_discarded() ? Json(std::string(text)) : json;
}

std::string parameters_grammar(const CallSyntax& syntax, const std::string& function, const Json& parameters, const std::string& rule,
                               std::vector<std::pair<std::string, std::string>>& schemas) {
  const Json* type = member(parameters, "type");
  for (const char* key : {"$ref", "anyOf", "oneOf", "allOf"})
    if (member(parameters, key)) throw Error(fmt::format("{}: '{}' at the top of its parameters cannot be forced in this model's form", function, key));
  if (type && *type != "object") throw Error(fmt::format("{}: the parameters must be of the type object", function));
  const Json* properties = member(parameters, "properties");
  if (!properties) return {};
  if (!properties->is_object()) throw Error(fmt::format("{}: properties must be an object", function));
  const Json* required = member(parameters, "required");
  std::string out;
  for (const auto& [key, schema] : properties->items()) {
    const std::string where = fmt::format("{}: argument '{}'", function, key);
    if (key.find_first_of("<>\"\n") != std::string::npos || key.empty())
      throw Error(fmt::format("{}: such a name cannot be forced in this model's form", where));
    const bool needed = required && std::find(required->begin(), required->end(), key) != required->end();
    std::string value;
    const Json* meant = resolved(schema, parameters);
    if (!meant) throw Error(fmt::format("{}: its $ref leads nowhere", where));
    if (kinds_of(*meant, parameters).text) {
      value = raw_text_grammar(*meant, where, syntax.value_end);
    } else {
      Json whole = schema;
      for (const char* definitions : {"$defs", "definitions"})
        if (const Json* given = member(parameters, definitions); given && whole.is_object()) whole[definitions] = *given;
      value = fmt::format("{}-{}", rule, schemas.size());
      schemas.emplace_back(value, whole.dump());
    }
    const std::string before = fmt::format("{}{}{}{}", syntax.key, key, syntax.key_end, syntax.value_begin);
    const std::string one = fmt::format("{} {} {}", gbnf_quote(before), value, gbnf_quote(syntax.value_end));
    out += needed ? " " + one : fmt::format(" ({})?", one);
  }
  return out;
}

std::string raw_text_rules(std::string_view end) {
  // The end mark begins with '<', has no other, and no byte that is special in a class: after any part of it there comes another '<',
  // which begins it anew, or a byte that neither goes on with it nor begins it.
  const std::string_view mark = trimmed(end);
  std::string parts, breaks;
  for (size_t size = 1; size < mark.size(); ++size) {
    const std::string part = gbnf_quote(mark.substr(0, size));
    parts += (size > 1 ? " | " : "") + part;
    breaks += fmt::format("{}{} [^<{}]", size > 1 ? " | " : "", part, mark[size]);
  }
  return fmt::format("Text ::= ([^<] | Text-part* Text-break)* Text-part*\nText-part ::= {}\nText-break ::= {}\n", parts, breaks);
}

}  // namespace sx::server
