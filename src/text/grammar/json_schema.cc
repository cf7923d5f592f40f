#include "text/grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "text/grammar/gbnf.h"
#include "text/grammar/schema_parts.h"
#include "text/unicode.h"

namespace sx {
namespace {

constexpr size_t kMaxSchemaBytes = 320 << 10,
                 kMaxKeys = 10'000;  // the server takes 256 KiB, but may repeat definitions
constexpr int kMaxJsonDepth = 64, kMaxDepth = 96, kMaxVisits = 20'000;
constexpr size_t kMaxNameBytes = 256;
constexpr int64_t kMostRepeats = 100'000;

struct Basic {
  const char* name;
  const char* body;
  std::vector<const char*> uses;
};
const std::vector<Basic> kBasics = {
    {"ws", R"((" " | "\n" [ \t]{0,20})?)", {}},
    // Escaped surrogates come in pairs, else not every parser reads them.
    {"char",
     R"([^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" ([0-9a-cA-CefEF] hex{3} | [dD] [0-7] hex{2} | )"
     R"([dD] [89abAB] hex{2} "\\u" [dD] [c-fC-F] hex{2})))",
     {"hex"}},
    {"hex", "[0-9a-fA-F]", {}},
    {"string", R"("\"" char* "\"")", {"char"}},
    {"integer", R"("0" | "-"? [1-9] [0-9]{0,15})", {}},
    {"number", R"("-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?)", {}},
    {"value",
     R"(object | array | string | number | "true" | "false" | "null")",
     {"object", "array", "string", "number"}},
    {"object", R"("{" ws (pair ("," ws pair)* ws)? "}")", {"ws", "pair"}},
    {"pair", R"(string ":" ws value)", {"string", "ws", "value"}},
    {"array", R"("[" ws (value ("," ws value)* ws)? "]")", {"ws", "value"}},
    {"date",
     R"([0-9]{4} "-" ("02-" ("0" [1-9] | "1" [0-9] | "2" [0-8]) | ("0" [469] | "11") "-" ("0" [1-9] | [12] [0-9] | "30") | )"
     R"(("0" [13578] | "1" [02]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])))",
     {}},
    {"time",
     R"(([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,6})? )"
     R"(("Z" | [-+] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9]))",
     {}},
    {"date-time", R"(date "T" time)", {"date", "time"}},
    {"uuid", R"(hex{8} "-" hex{4} "-" hex{4} "-" hex{4} "-" hex{12})", {"hex"}},
    {"plain", R"([^"\\\x00-\x1F])", {}},
};

bool has_type(const Schema& value, const std::string& type) {
  if (type == "integer") return value.is_number() && std::trunc(value.get<double>()) == value.get<double>();
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  return type == (value.is_object() ? "object" : value.is_array() ? "array" : "");
}

class Writer {
 public:
  // An expression of the JSON texts that a schema describes; the rules it uses come with write(). The limits hold
  // for all schemas together.
  std::string add(std::string_view text) {
    schema_bytes_ += text.size();
    if (schema_bytes_ > kMaxSchemaBytes)
      fail("json schema: {} bytes, at most {} allowed", schema_bytes_, kMaxSchemaBytes);
    try {
      root_ = Schema::parse(text.begin(), text.end(), [&](int depth, Schema::parse_event_t event, Schema&) {
        if (depth > kMaxJsonDepth) fail("json schema: nested more than {} deep", kMaxJsonDepth);
        if (event == Schema::parse_event_t::key && ++keys_ > kMaxKeys) fail("json schema: more than {} keys", kMaxKeys);
        return true;
      });
    } catch (const Schema::exception&) { fail("json schema: not valid JSON"); }
    refs_.clear();
    return visit(root_, "#", 0);
  }

  // The whole grammar: `rules` and what they use.
  std::string write(std::string rules) {
    for (const auto& [name, text] : rules_) rules += name + " ::= " + text + "\n";
    parse_gbnf(rules);  // a $ref that leads to itself is found here, and what has become too large
    return rules;
  }

 private:
  [[noreturn]] static void wrong(const std::string& where, const std::string& what) {
    fail("json schema: {}: {}", where, what);
  }

  void add_rule(const std::string& name, std::string body) {
    bytes_ += name.size() + body.size() + 6;
    if (bytes_ > kMaxGrammarBytes) fail("json schema: its grammar is larger than {} bytes", kMaxGrammarBytes);
    rules_[name] = std::move(body);
  }
  std::string fresh_name() { return "r" + std::to_string(++names_); }
  std::string make_rule(std::string body) {
    std::string name = fresh_name();
    add_rule(name, std::move(body));
    return name;
  }
  std::string use(const std::string& name) {
    if (rules_.contains(name)) return name;
    const auto basic = std::find_if(kBasics.begin(), kBasics.end(), [&](const Basic& b) { return name == b.name; });
    add_rule(name, basic->body);
    for (const char* used : basic->uses) use(used);
    return name;
  }

  // An expression that can be repeated: a rule, a literal or a group.
  std::string visit(const Schema& schema, const std::string& where, int depth) {
    if (depth > kMaxDepth) wrong(where, "nested too deep, or a $ref to itself among other keywords");
    if (++visits_ > kMaxVisits) fail("json schema: too large");
    if (schema == true) return use("value");
    if (schema == false) wrong(where, "false allows nothing");
    if (!schema.is_object()) wrong(where, "a schema must be an object, true or false");
    refuse_unsupported(schema, where);
    if (schema.contains("$ref")) return visit_ref(schema, where, depth);
    if (schema.contains("allOf")) return visit(flatten(schema, where, depth), where, depth + 1);
    for (const char* key : {"anyOf", "oneOf"})
      if (schema.contains(key)) return visit_any(schema, key, where, depth);
    if (schema.contains("const")) return gbnf_literal(schema["const"].dump());
    return schema.contains("enum") ? visit_enum(schema, where) : visit_types(schema, where, depth);
  }

  static Schema without(const Schema& schema, const char* key) {
    Schema rest = schema;
    rest.erase(key);
    return rest;
  }
  static bool asserts(const Schema& schema) {
    for (const auto& [key, value] : schema.items())
      if (is_assertion(key)) return true;
    return false;
  }

  const Schema& target(const Schema& schema, const std::string& where) {
    const Schema& ref = schema["$ref"];
    if (!ref.is_string()) wrong(where, "$ref must be a text");
    const auto& path = ref.get_ref<const std::string&>();
    if (path == "#") return root_;
    try {
      const Schema::json_pointer pointer(path.starts_with("#/") ? path.substr(1) : "/");
      if (path.starts_with("#/") && root_.contains(pointer)) return root_[pointer];
    } catch (const Schema::exception&) {}
    wrong(where, fmt::format("$ref {} leads nowhere in this schema", ref.dump()));
  }

  std::string visit_ref(const Schema& schema, const std::string& where, int depth) {
    const Schema& to = target(schema, where);
    const Schema rest = without(schema, "$ref");
    if (asserts(rest)) return visit(merge_schemas(to, rest, where), where, depth + 1);
    const auto path = schema["$ref"].get<std::string>();
    const auto [found, fresh] = refs_.try_emplace(path);
    if (!fresh) return found->second;
    const std::string name = found->second = fresh_name();
    add_rule(name, visit(to, path, depth + 1));
    return name;
  }

  // A schema without allOf at its top.
  Schema flatten(const Schema& schema, const std::string& where, int depth) {
    if (depth > kMaxDepth) wrong(where, "nested too deep, or a $ref to itself among other keywords");
    if (++visits_ > kMaxVisits) fail("json schema: too large");
    if (!schema.is_object()) return schema;
    if (schema.contains("$ref"))
      return flatten(merge_schemas(target(schema, where), without(schema, "$ref"), where), where, depth + 1);
    if (!schema.contains("allOf")) return schema;
    if (!schema["allOf"].is_array() || schema["allOf"].empty()) wrong(where, "allOf must be a list of schemas");
    Schema out = without(schema, "allOf");
    for (const Schema& one : schema["allOf"]) out = merge_schemas(out, flatten(one, where, depth + 1), where);
    return out;
  }

  std::string visit_any(const Schema& schema, const char* key, const std::string& where, int depth) {
    const Schema& list = schema[key];
    if (!list.is_array() || list.empty()) wrong(where, fmt::format("{} must be a list of schemas", key));
    const Schema rest = without(schema, key);
    const bool merged = asserts(rest);
    std::string out;
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i] == false) continue;
      const std::string here = fmt::format("{}/{}/{}", where, key, i);
      if (!out.empty()) out += " | ";
      if (merged) out += visit(merge_schemas(rest, flatten(list[i], here, depth + 1), here), here, depth + 1);
      else out += visit(list[i], here, depth + 1);
    }
    if (out.empty()) wrong(where, fmt::format("{} allows nothing", key));
    return "(" + out + ")";
  }

  std::vector<std::string> types_of(const Schema& schema, const std::string& where) {
    std::vector<std::string> types;
    const auto type = schema.find("type");
    if (type == schema.end()) return types;
    for (const Schema& one : type->is_array() ? *type : Schema::array({*type})) {
      constexpr const char* kTypes[] = {"object", "array", "string", "number", "integer", "boolean", "null"};
      if (std::find(std::begin(kTypes), std::end(kTypes), one) == std::end(kTypes))
        wrong(where, fmt::format("type {} is not known", one.dump()));
      types.push_back(one.get<std::string>());
    }
    if (types.empty()) wrong(where, "type names none");
    return types;
  }

  std::string visit_enum(const Schema& schema, const std::string& where) {
    const auto types = types_of(schema, where);
    if (!schema["enum"].is_array()) wrong(where, "enum must be a list");
    std::string out;
    for (const Schema& value : schema["enum"])
      if (types.empty() ||
          std::any_of(types.begin(), types.end(), [&](const std::string& type) { return has_type(value, type); }))
        out += (out.empty() ? "" : " | ") + gbnf_literal(value.dump());
    if (out.empty()) wrong(where, "enum allows nothing");
    return "(" + out + ")";
  }

  std::string visit_types(const Schema& schema, const std::string& where, int depth) {
    auto types = types_of(schema, where);
    const auto has = [&](std::initializer_list<const char*> keys) {
      return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return schema.contains(key); });
    };
    if (types.empty()) {  // by what it says
      if (has({"properties", "required", "additionalProperties"})) types = {"object"};
      else if (has({"items", "prefixItems", "minItems", "maxItems"})) types = {"array"};
      else if (has({"minLength", "maxLength", "pattern", "format"})) types = {"string"};
      else if (has({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})) types = {"number"};
      else return use("value");
    }
    std::string out;
    for (const std::string& type : types) {
      std::string one;
      if (type == "object") one = visit_object(schema, where, depth);
      else if (type == "array") one = visit_array(schema, where, depth);
      else if (type == "string") one = visit_string(schema, where);
      else if (type == "number" || type == "integer") one = visit_number(schema, type, where);
      else one = type == "boolean" ? R"(("true" | "false"))" : R"("null")";
      out += (out.empty() ? "" : " | ") + one;
    }
    return types.size() == 1 ? out : "(" + out + ")";
  }

  struct Property {
    std::string rule;
    bool required;
  };

  std::string pair_rule(const std::string& name, const Schema& schema, const std::string& where, int depth) {
    const std::string value = visit(schema, where, depth + 1);
    return make_rule(gbnf_literal(Schema(name).dump() + ":") + " " + use("ws") + " " + value);
  }

  std::string visit_object(const Schema& schema, const std::string& where, int depth) {
    static const Schema kNoProperties = Schema::object(), kNoNames = Schema::array(), kAny = true;
    const Schema& named = schema.contains("properties") ? schema["properties"] : kNoProperties;
    const Schema& required = schema.contains("required") ? schema["required"] : kNoNames;
    if (!named.is_object()) wrong(where, "properties must be an object");
    if (!required.is_array()) wrong(where, "required must be a list of names");
    const bool more_said = schema.contains("additionalProperties");
    const Schema& more = more_said ? schema["additionalProperties"] : kAny;
    if (named.empty() && required.empty()) {
      if (more == true) return use("object");
      if (more == false) return R"("{}")";
    }
    std::vector<Property> properties;
    std::vector<std::string> names;
    const auto add = [&](const std::string& name, const Schema& one, bool needed) {
      names.push_back(name);
      if (one == false && !needed) return;
      properties.push_back({pair_rule(name, one, where + "/properties/" + name, depth), needed});
    };
    for (const auto& [name, one] : named.items())
      add(name, one, std::find(required.begin(), required.end(), name) != required.end());
    for (const Schema& name : required) {
      if (!name.is_string()) wrong(where, "required must be a list of names");
      const auto& text = name.get_ref<const std::string&>();
      if (std::find(names.begin(), names.end(), text) != names.end()) continue;
      if (more == false)
        wrong(where, fmt::format("property {} is required but forbidden by additionalProperties", name.dump()));
      add(text, more, true);
    }
    std::string extra;
    if ((more_said || named.empty()) && more != false) {
      const std::string value = visit(more, where + "/additionalProperties", depth + 1);
      extra = make_rule((names.empty() ? use("string") : other_name(names)) + " \":\" " + use("ws") + " " + value);
    }
    return make_rule(object_body(properties, extra));
  }

  // Properties in order, the optional ones may be missing; then any number of `extra` (empty: none).
  std::string object_body(const std::vector<Property>& properties, const std::string& extra) {
    use("ws");
    std::string rest = extra.empty() ? "" : fmt::format("(\",\" ws {})*", extra);  // after the last property
    std::vector<std::string> firsts;                                               // ways to begin, from the last on
    bool maybe_empty = true;
    if (!extra.empty()) firsts.push_back(extra + " " + rest);
    for (size_t i = properties.size(); i-- > 0;) {
      const Property& p = properties[i];
      if (p.required) firsts.clear(), maybe_empty = false;
      firsts.push_back(p.rule + " " + rest);
      const std::string another = "\",\" ws " + p.rule;
      if (i > 0) rest = make_rule((p.required ? another : "(" + another + ")?") + " " + rest);
    }
    std::string out;
    for (size_t i = firsts.size(); i-- > 0;) out += (out.empty() ? "" : " | ") + firsts[i];
    if (out.empty()) return R"("{}")";
    return fmt::format("\"{{\" ws (({}) ws){} \"}}\"", out, maybe_empty ? "?" : "");
  }

  // A string without escapes that is none of the names.
  std::string other_name(const std::vector<std::string>& names) {
    std::vector<std::u32string> texts;
    for (const std::string& name : names) {
      std::u32string text;
      if (name.size() > kMaxNameBytes)
        fail("json schema: a property's name of {} bytes beside additionalProperties", name.size());
      for (size_t at = 0; at < name.size();) {
        const Utf8Step step = utf8_step(name, at);
        text += step.code;
        at += step.length;
      }
      texts.push_back(std::move(text));
    }
    std::sort(texts.begin(), texts.end());
    use("plain");
    return fmt::format("\"\\\"\" {} \"\\\"\"", other_tail(texts, 0));
  }

  // A tail, after `at` characters that all texts share, of a string that is none of them.
  std::string other_tail(std::span<const std::u32string> texts, size_t at) {
    const bool is_name = texts[0].size() == at;
    std::string out, differs = "[^\"\\\\\\x00-\\x1F";
    if (is_name) texts = texts.subspan(1);
    while (!texts.empty() && texts[0].size() == at) texts = texts.subspan(1);
    while (!texts.empty()) {
      const char32_t c = texts[0][at];
      size_t same = 1;
      while (same < texts.size() && texts[same][at] == c) ++same;
      differs += fmt::format("\\U{:08X}", uint32_t(c));
      if (c >= 0x20 && c != '"' && c != '\\')
        out += fmt::format("[\\U{:08X}] {} | ", uint32_t(c), other_tail(texts.first(same), at + 1));
      texts = texts.subspan(same);
    }
    return make_rule(out + differs + "] plain*" + (is_name ? "" : " | \"\""));
  }

  int64_t count(const Schema& schema, const char* key, int64_t otherwise, const std::string& where) {
    if (!schema.contains(key)) return otherwise;
    const Schema& value = schema[key];
    const bool whole = value.is_number() && std::trunc(value.get<double>()) == value.get<double>();
    if (!whole || value.get<double>() < 0) wrong(where, fmt::format("{} must be a whole number, at least 0", key));
    if (std::string_view(key).starts_with("min") && value.get<double>() > double(kMostRepeats))
      wrong(where, fmt::format("{} of more than {}", key, kMostRepeats));
    return int64_t(std::min(value.get<double>(), double(kMostRepeats)));
  }
  static std::string repeats(int64_t least, int64_t most) {
    return most < 0 ? fmt::format("{{{},}}", least) : fmt::format("{{{},{}}}", least, most);
  }

  std::string visit_array(const Schema& schema, const std::string& where, int depth) {
    static const Schema kNone = Schema::array(), kAny = true;
    const int64_t least = count(schema, "minItems", 0, where), most = count(schema, "maxItems", -1, where);
    if (most >= 0 && most < least) wrong(where, "maxItems is less than minItems");
    // Older drafts call the fixed ones items, too, and those behind them additionalItems.
    const bool older = schema.contains("items") && schema["items"].is_array();
    const char* rest_key = older ? "additionalItems" : "items";
    const Schema& fixed = older ? schema["items"] : schema.contains("prefixItems") ? schema["prefixItems"] : kNone;
    const Schema& rest = schema.contains(rest_key) ? schema[rest_key] : kAny;
    if (!fixed.is_array()) wrong(where, "prefixItems must be a list of schemas");
    if (most == 0) return R"("[]")";
    if (fixed.empty() && rest == true && least == 0 && most < 0) return use("array");
    use("ws");
    std::string items;
    int64_t placed = 0;
    for (const Schema& one : fixed) {
      if (placed == most) break;
      items += (placed ? " \",\" ws " : "") + visit(one, fmt::format("{}/prefixItems/{}", where, placed), depth + 1);
      ++placed;
    }
    const int64_t least_more = std::max<int64_t>(0, least - placed), most_more = most < 0 ? -1 : most - placed;
    const bool more = rest != false && most_more != 0 && (placed == 0 || schema.contains(rest_key) || least_more > 0);
    if (!more) {
      if (least_more > 0) wrong(where, "minItems asks for more items than are allowed");
      return items.empty() ? R"("[]")" : make_rule(fmt::format(R"("[" ws {} ws "]")", items));
    }
    const std::string one = visit(rest, where + "/" + rest_key, depth + 1);
    if (placed > 0)
      return make_rule(fmt::format(R"("[" ws {} ("," ws {}){} ws "]")", items, one, repeats(least_more, most_more)));
    const std::string others = repeats(std::max<int64_t>(0, least - 1), most < 0 ? -1 : most - 1);
    return make_rule(fmt::format(R"("[" ws ({} ("," ws {}){} ws){} "]")", one, one, others, least == 0 ? "?" : ""));
  }

  std::string visit_string(const Schema& schema, const std::string& where) {
    const bool lengths = schema.contains("minLength") || schema.contains("maxLength");
    const std::string format =
        schema.contains("format") && schema["format"].is_string() ? schema["format"].get<std::string>() : "";
    const bool known = format == "date" || format == "time" || format == "date-time" || format == "uuid";
    if (lengths + known + schema.contains("pattern") > 1)
      wrong(where, "only one of pattern, format and a length is supported for a string");
    if (known) return fmt::format(R"(("\"" {} "\""))", use(format));
    if (schema.contains("pattern")) {
      if (!schema["pattern"].is_string()) wrong(where, "pattern must be a text");
      use("char");
      return make_rule(fmt::format(R"("\"" {} "\"")", gbnf_of_pattern(schema["pattern"].get<std::string>(), where)));
    }
    if (!lengths) return use("string");
    const int64_t least = count(schema, "minLength", 0, where), most = count(schema, "maxLength", -1, where);
    if (most >= 0 && most < least) wrong(where, "maxLength is less than minLength");
    return make_rule(fmt::format(R"("\"" {}{} "\"")", use("char"), repeats(least, most)));
  }

  std::string visit_number(const Schema& schema, const std::string& type, const std::string& where) {
    NumberBounds bounds;
    const bool whole = type == "integer";
    for (const char* key : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
      if (!schema.contains(key)) continue;
      if (!schema[key].is_number()) wrong(where, fmt::format("{} must be a number", key));
      const double value = schema[key].get<double>();
      if (!(std::fabs(value) < 9e15)) wrong(where, fmt::format("{} is too large", key));
      const bool low = std::string_view(key).ends_with("inimum"), out = key[0] == 'e';
      if (!whole && std::trunc(value) != value) wrong(where, fmt::format("{} of a number must be a whole number", key));
      int64_t bound = int64_t(low ? std::ceil(value) : std::floor(value));
      if (whole && out && double(bound) == value) bound += low ? 1 : -1;
      auto& side = low ? bounds.least : bounds.most;
      if (side && (low ? *side > bound : *side < bound)) continue;
      side = bound;
      (low ? bounds.above_least : bounds.below_most) = out;
    }
    if (!bounds.least && !bounds.most) return use(type);
    const std::string body = whole ? gbnf_of_integers(bounds) : gbnf_of_numbers(bounds);
    if (body.empty()) wrong(where, "no number is between minimum and maximum");
    return make_rule(body);
  }

  Schema root_;
  std::map<std::string, std::string> rules_, refs_;
  size_t bytes_ = 0, schema_bytes_ = 0, keys_ = 0;
  int names_ = 0, visits_ = 0;
};

}  // namespace

std::string gbnf_of_schema(std::string_view schema_json, std::string_view before, std::string_view after) {
  Writer writer;
  std::string root = "root ::= ";
  if (!before.empty()) root += gbnf_literal(before) + " ";
  root += writer.add(schema_json);
  if (!after.empty()) root += " " + gbnf_literal(after);
  return writer.write(root + "\n");
}

std::string gbnf_of_schemas(std::string_view rules, std::span<const std::pair<std::string, std::string>> schemas) {
  Writer writer;
  std::string all(rules);
  for (const auto& [name, schema] : schemas) all += fmt::format("{} ::= {}\n", name, writer.add(schema));
  return writer.write(std::move(all));
}

}  // namespace sx
