#include "server/tool_schema.h"

#include <fmt/format.h>
#include <specextend/specextend.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "server/tool_text.h"
#include "server/tool_values.h"

namespace sx::server {

using Json = nlohmann::ordered_json;

namespace {

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first == std::string_view::npos ? std::string_view()
                                         : text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

const Json* member(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? nullptr : &*found;
}

// What a schema is once its references are followed; nothing if one leads nowhere.
const Json* resolved(const Json& schema, const Json& root) {
  const Json* at = &schema;
  for (int depth = 0; depth < kMaxValueDepth; ++depth) {
    const Json* ref = member(*at, "$ref");
    if (!ref) return at;
    if (!ref->is_string() || !ref->get_ref<const std::string&>().starts_with("#/")) return nullptr;
    try {
      at = &root.at(Json::json_pointer(ref->get_ref<const std::string&>().substr(1)));
    } catch (const Json::exception&) { return nullptr; }
  }
  return nullptr;
}

// Which kinds of values a schema allows.
struct Kinds {
  bool text = false, null = false, other = false;
  void add(const Kinds& more) { text |= more.text, null |= more.null, other |= more.other; }
};

Kinds kind_of_value(const Json& value) {
  return {value.is_string(), value.is_null(), !value.is_string() && !value.is_null()};
}

Kinds kinds_of(const Json& given, const Json& root, int depth = 0) {
  constexpr Kinds kAll{true, true, true};
  const Json* found = resolved(given, root);
  if (!found || !found->is_object() || depth > kMaxValueDepth) return kAll;
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

// Most of these are harmless to a call that is not forced, but a grammar promises that they hold.
void refuse_bounds(const Json& schema, const std::string& where) {
  for (const char* key : {"pattern", "minLength", "maxLength"})
    if (member(schema, key))
      throw Error(fmt::format("{}: '{}' cannot be forced in the form in which this model writes calls", where, key));
}

// The texts of a schema as GBNF: those it lists, or any.
std::string raw_text_grammar(const Json& schema, const std::string& where, std::string_view end) {
  const Json* values = member(schema, "enum");
  const Json* only = member(schema, "const");
  if (!values && !only) {
    refuse_bounds(schema, where);
    return "Text";
  }
  std::string out;
  for (const Json& value : only ? Json::array({*only}) : *values) {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (text.find(trimmed(end)) != std::string::npos)
      throw Error(fmt::format("{}: a value has '{}' in it", where, trimmed(end)));
    out += (out.empty() ? "" : " | ") + gbnf_quote(text);
  }
  return "(" + out + ")";
}

// What a row writes about the type of a value, as GBNF.
std::string kind_grammar(const CallSyntax& syntax, const Json& schema, const Json& root, bool text) {
  if (syntax.kind == CallSyntax::Kind::kIsText) return text ? "\"true\"" : "\"false\"";
  if (text) return "\"string\"";
  const Json* meant = resolved(schema, root);
  const Json* type = meant ? member(*meant, "type") : nullptr;
  std::string out;
  for (const char* name : {"number", "boolean", "null", "array", "object"}) {
    const auto is = [&](const Json& one) {
      return one == name || (std::string_view(name) == "number" && one == "integer");
    };
    const bool may = !type || (type->is_array() ? std::any_of(type->begin(), type->end(), is) : is(*type));
    if (may) out += (out.empty() ? "" : " | ") + gbnf_quote(name);
  }
  return "(" + out + ")";
}

// What the parameters of a function say, if they can be forced argument by argument; nothing: it has none.
const Json* forced_properties(const std::string& function, const Json& parameters) {
  const Json* type = member(parameters, "type");
  for (const char* key : {"$ref", "anyOf", "oneOf", "allOf"})
    if (member(parameters, key))
      throw Error(
          fmt::format("{}: '{}' at the top of its parameters cannot be forced in this model's form", function, key));
  if (type && *type != "object") throw Error(fmt::format("{}: the parameters must be of the type object", function));
  const Json* properties = member(parameters, "properties");
  if (properties && !properties->is_object()) throw Error(fmt::format("{}: properties must be an object", function));
  return properties;
}

bool is_required(const Json& object, const std::string& key) {
  const Json* required = member(object, "required");
  return required && std::find(required->begin(), required->end(), key) != required->end();
}

// A schema with the definitions that its references may lead to.
std::string whole_schema(Json schema, const Json& root) {
  for (const char* definitions : {"$defs", "definitions"})
    if (const Json* given = member(root, definitions); given && schema.is_object()) schema[definitions] = *given;
  return schema.dump();
}

}  // namespace

std::string mark_literal(const CallSyntax& syntax, std::string_view text) {
  return (syntax.control ? "@" : "") + gbnf_quote(text);
}

Json parse_written(std::string_view text) {
  bool deep = false;
  const auto bounded = [&](int depth, Json::parse_event_t, Json&) {
    deep = deep || depth > kMaxValueDepth;
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

bool is_text_argument(const Json& parameters, const std::string& key) {
  const Json* schema = schema_of(parameters, key);
  const Kinds kinds = kinds_of(schema ? *schema : Json(), parameters);
  return kinds.text && !kinds.other && !kinds.null;
}

std::string parameters_grammar(const CallSyntax& syntax, const std::string& function, const Json& parameters,
                               const std::string& rule, std::vector<std::pair<std::string, std::string>>& schemas) {
  const Json* properties = forced_properties(function, parameters);
  if (!properties) return {};
  std::string out;
  for (const auto& [key, schema] : properties->items()) {
    const std::string where = fmt::format("{}: argument '{}'", function, key);
    if (key.find_first_of("<>\"\n") != std::string::npos || key.empty())
      throw Error(fmt::format("{}: such a name cannot be forced in this model's form", where));
    std::string value;
    const Json* meant = resolved(schema, parameters);
    if (!meant) throw Error(fmt::format("{}: its $ref leads nowhere", where));
    // Where the model says what a value is, a schema that allows texts and others leaves it the choice.
    const bool says = syntax.kind != CallSyntax::Kind::kNone;
    const Kinds kinds = kinds_of(*meant, parameters);
    const auto with_kind = [&](bool text, const std::string& written) {
      std::string all = says ? kind_grammar(syntax, schema, parameters, text) + " " : "";
      if (!syntax.value_begin.empty()) all += mark_literal(syntax, syntax.value_begin) + " ";
      return all + written;
    };
    if (kinds.text) value = with_kind(true, raw_text_grammar(*meant, where, syntax.value_end));
    if (!kinds.text || (says && (kinds.null || kinds.other))) {
      const std::string json = fmt::format("{}-{}", rule, schemas.size());
      schemas.emplace_back(json, whole_schema(schema, parameters));
      value = kinds.text ? fmt::format("({} | {})", value, with_kind(false, json)) : with_kind(false, json);
    }
    const std::string one =
        fmt::format("{} {} {} {} {}", mark_literal(syntax, syntax.key), gbnf_quote(key),
                    mark_literal(syntax, syntax.key_end), value, mark_literal(syntax, syntax.value_end));
    out += is_required(parameters, key) ? " " + one : fmt::format(" ({})?", one);
  }
  return out;
}

std::string raw_text_rules(std::string_view end, std::string_view name) {
  // The first tag of the end mark begins with a bracket and has no other like it: after any part of it there comes
  // another such bracket, which begins it anew, or a character that neither goes on with it nor begins it.
  const std::string_view whole = trimmed(end), mark = whole.substr(0, whole.find(whole[0] == '[' ? ']' : '>') + 1);
  const auto in_class = [](std::string_view c) {
    return (std::string_view("[]^\\-").find(c[0]) != std::string_view::npos ? "\\" : "") + std::string(c);
  };
  const std::string first = in_class(mark.substr(0, 1));
  std::string parts, breaks;
  for (size_t size = 1, next = 0; size < mark.size(); size = next) {
    for (next = size + 1; next < mark.size() && (uint8_t(mark[next]) & 0xC0) == 0x80;)
      ++next;  // the bytes of one character
    const std::string part = gbnf_quote(mark.substr(0, size));
    parts += (size > 1 ? " | " : "") + part;
    breaks += fmt::format("{}{} [^{}{}]", size > 1 ? " | " : "", part, first, in_class(mark.substr(size, next - size)));
  }
  return fmt::format("{0} ::= ([^{1}] | {0}-part* {0}-break)* {0}-part*\n{0}-part ::= {2}\n{0}-break ::= {3}\n", name,
                     first, parts, breaks);
}

namespace {

// Values in a notation other than JSON, as GBNF.
class NotationGrammar {
 public:
  NotationGrammar(const CallSyntax& syntax, const Json& root, const std::string& rule, std::string& rules,
                  std::vector<std::pair<std::string, std::string>>& schemas)
      : syntax_(syntax), root_(root), rule_(rule), rules_(rules), schemas_(schemas) {}

  // The members of an object, with commas between them; a rule.
  std::string members(const Json& object, const Json& properties, const std::string& where, bool top, int depth) {
    std::vector<std::pair<std::string, bool>> all;
    for (const auto& [key, schema] : properties.items()) {
      const std::string here = fmt::format("{}: argument '{}'", where, key);
      if (key.empty() || key.find_first_of(" \t\r\n=:,(){}[]<>\"'") != std::string::npos)
        throw Error(fmt::format("{}: such a name cannot be forced in this model's form", here));
      all.emplace_back(gbnf_quote(write_key(key, syntax_.notation, top)) + " " + value(schema, here, depth),
                       is_required(object, key));
    }
    // Two rules for each member: what may follow before anything is written, and behind something.
    std::string first = "\"\"", more = "\"\"";
    for (size_t i = all.size(); i-- > 0;) {
      const auto& [one, needed] = all[i];
      const std::string next_first =
          fresh(needed ? fmt::format("{} {}", one, more) : fmt::format("{} {} | {}", one, more, first));
      more = fresh(fmt::format("({} {}){} {}", comma(), one, needed ? "" : "?", more));
      first = next_first;
    }
    return first;
  }

 private:
  std::string comma() const { return syntax_.notation == CallSyntax::Notation::kGemma ? "\",\"" : "\", \""; }
  std::string written(const Json& json) const {
    if (syntax_.notation == CallSyntax::Notation::kGemma && json.is_string() &&
        json.get_ref<const std::string&>().find(kGemmaQuote) != std::string::npos)
      throw Error(fmt::format("the value {} has {} in it", json.dump(), kGemmaQuote));
    return mark_literal(syntax_, write_value(json, syntax_.notation));
  }

  std::string fresh(const std::string& body) {
    const std::string name = fmt::format("{}-v{}", rule_, count_++);
    rules_ += fmt::format("{} ::= {}\n", name, body);
    return name;
  }

  std::string any_of(const Json& list, const std::string& where, int depth) {
    std::string out;
    for (const Json& one : list) out += (out.empty() ? "" : " | ") + value(one, where, depth + 1);
    return "(" + out + ")";
  }

  std::string value(const Json& given, const std::string& where, int depth) {
    const Json* meant = resolved(given, root_);
    if (!meant) throw Error(fmt::format("{}: its $ref leads nowhere", where));
    if (depth > kMaxNesting) throw Error(fmt::format("{}: nested too deeply to be forced in this model's form", where));
    const Json& schema = *meant;
    if (member(schema, "allOf"))
      throw Error(fmt::format("{}: 'allOf' cannot be forced in the form in which this model writes calls", where));
    for (const char* key : {"anyOf", "oneOf"})
      if (const Json* list = member(schema, key); list && list->is_array() && !list->empty())
        return any_of(*list, where, depth);
    if (const Json* only = member(schema, "const")) return written(*only);
    if (const Json* values = member(schema, "enum"); values && values->is_array() && !values->empty()) {
      std::string out;
      for (const Json& one : *values) out += (out.empty() ? "" : " | ") + written(one);
      return "(" + out + ")";
    }
    const Json* type = member(schema, "type");
    if (!type) return "Any";
    if (!type->is_array()) return typed(schema, *type, where, depth);
    std::string out;
    for (const Json& one : *type) out += (out.empty() ? "" : " | ") + typed(schema, one, where, depth);
    return "(" + out + ")";
  }

  std::string typed(const Json& schema, const Json& type, const std::string& where, int depth) {
    if (type == "string") return refuse_bounds(schema, where), "Quoted";
    if (type == "boolean") return fmt::format("({} | {})", written(true), written(false));
    if (type == "null") return written(nullptr);
    if (type == "array") {
      const Json* items = member(schema, "items");
      const std::string one = items && items->is_object() ? value(*items, where, depth + 1) : "Any";
      const auto bound = [&](const char* key) {
        const Json* number = member(schema, key);
        return number && number->is_number_unsigned() ? std::optional<uint64_t>(number->get<uint64_t>()) : std::nullopt;
      };
      const uint64_t least = bound("minItems").value_or(0);
      const std::optional<uint64_t> most = bound("maxItems");
      if (most && *most < least) throw Error(fmt::format("{}: maxItems is less than minItems", where));
      if (most == 0u) return "\"[]\"";
      const std::string more = fmt::format("({} {}){{{},{}}}", comma(), one, least > 0 ? least - 1 : 0,
                                           most ? std::to_string(*most - 1) : "");
      return fmt::format("\"[\" ({} {}){} \"]\"", one, more, least > 0 ? "" : "?");
    }
    if (type == "object") {
      const Json* properties = member(schema, "properties");
      if (!properties || !properties->is_object() || properties->empty()) return "Any-object";
      return fmt::format("\"{{\" {} \"}}\"", members(schema, *properties, where, false, depth + 1));
    }
    Json number = schema;
    number["type"] = type;
    const std::string name = fmt::format("{}-n{}", rule_, schemas_.size());
    schemas_.emplace_back(name, whole_schema(number, root_));
    return name;
  }

  static constexpr int kMaxNesting = 16;
  const CallSyntax& syntax_;
  const Json& root_;
  const std::string& rule_;
  std::string& rules_;
  std::vector<std::pair<std::string, std::string>>& schemas_;
  int count_ = 0;
};

}  // namespace

std::string arguments_grammar(const CallSyntax& syntax, const std::string& function, const Json& parameters,
                              const std::string& rule, std::string& rules,
                              std::vector<std::pair<std::string, std::string>>& schemas) {
  const Json* properties = forced_properties(function, parameters);
  const std::string inside = properties ? NotationGrammar(syntax, parameters, rule, rules, schemas)
                                              .members(parameters, *properties, function, true, 0)
                                        : "\"\"";
  return syntax.notation == CallSyntax::Notation::kPython ? fmt::format("\"(\" {} \")\"", inside)
                                                          : fmt::format("\"{{\" {} \"}}\"", inside);
}

std::string notation_rules(const CallSyntax& syntax) {
  const std::string number = R"(Number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,16})?
)";
  if (syntax.notation == CallSyntax::Notation::kPython)
    return number + R"(Quoted ::= "'" ([^'\\\x00-\x1F] | Escape)* "'" | "\"" ([^"\\\x00-\x1F] | Escape)* "\""
Escape ::= "\\" [nrt'"\\]
Any ::= Quoted | Number | "True" | "False" | "None" | Any-list | Any-object
Any-list ::= "[" (Any (", " Any)*)? "]"
Any-object ::= "{" (Quoted ": " Any (", " Quoted ": " Any)*)? "}"
)";
  return number + raw_text_rules(kGemmaQuote) +
         fmt::format("Quoted ::= {0} Text {0}", mark_literal(syntax, kGemmaQuote)) + R"(
Any ::= Quoted | Number | "true" | "false" | "null" | Any-list | Any-object
Any-list ::= "[" (Any ("," Any)*)? "]"
Any-object ::= "{" (Any-key ":" Any ("," Any-key ":" Any)*)? "}"
Any-key ::= [a-zA-Z_] [a-zA-Z0-9_]{0,63}
)";
}

}  // namespace sx::server
