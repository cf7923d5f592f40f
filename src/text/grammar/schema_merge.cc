// Which keywords of a schema count, and two schemas in one.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "text/grammar/schema_parts.h"

namespace sx {
namespace {

const std::set<std::string> kAssertions = {"type",
                                           "properties",
                                           "required",
                                           "additionalProperties",
                                           "items",
                                           "prefixItems",
                                           "additionalItems",
                                           "minItems",
                                           "maxItems",
                                           "enum",
                                           "const",
                                           "anyOf",
                                           "oneOf",
                                           "allOf",
                                           "$ref",
                                           "minLength",
                                           "maxLength",
                                           "pattern",
                                           "format",
                                           "minimum",
                                           "maximum",
                                           "exclusiveMinimum",
                                           "exclusiveMaximum"};

// They would change what is accepted; anything else unknown is a comment, as the standard has it.
const std::set<std::string> kUnsupported = {"not",
                                            "if",
                                            "then",
                                            "else",
                                            "dependencies",
                                            "dependentRequired",
                                            "dependentSchemas",
                                            "patternProperties",
                                            "propertyNames",
                                            "unevaluatedProperties",
                                            "unevaluatedItems",
                                            "contains",
                                            "minContains",
                                            "maxContains",
                                            "minProperties",
                                            "maxProperties",
                                            "multipleOf",
                                            "$dynamicRef",
                                            "$recursiveRef"};

Schema as_array(const Schema& value) { return value.is_array() ? value : Schema::array({value}); }

// Values of both lists; as types, an integer is a number too.
Schema common(const Schema& a, const Schema& b, bool types) {
  Schema out = Schema::array();
  const auto in = [&](const Schema& x, const Schema& list) {
    const auto has = [&](const Schema& y) { return std::find(list.begin(), list.end(), y) != list.end(); };
    return has(x) || (types && x == "integer" && has("number"));
  };
  for (const Schema& x : a)
    if (in(x, b)) out.push_back(x);
  for (const Schema& x : b)
    if (in(x, a) && std::find(out.begin(), out.end(), x) == out.end()) out.push_back(x);
  return out;
}

Schema both(const Schema& a, const Schema& b) { return a == b ? a : Schema{{"allOf", Schema::array({a, b})}}; }

const Schema* member(const Schema& schema, const char* key) {
  const auto found = schema.find(key);
  return found == schema.end() ? nullptr : &*found;
}

// What a says of a property it does not name; null: nothing.
const Schema* others(const Schema& a) {
  const Schema* more = member(a, "additionalProperties");
  return more && *more != true ? more : nullptr;
}

Schema merged_properties(const Schema& a, const Schema& b, const std::string& where) {
  static const Schema kNone = Schema::object();
  const Schema* pa = member(a, "properties");
  const Schema* pb = member(b, "properties");
  Schema out = kNone;
  const auto add = [&](const std::string& name, const Schema& one, const Schema* of_other,
                       const Schema* rest_of_other) {
    if (out.contains(name)) return;
    if (of_other) out[name] = both(one, *of_other);
    else if (rest_of_other && *rest_of_other == false)
      fail("json schema: {}: property {} of one schema is forbidden by additionalProperties of another", where,
           Schema(name).dump());
    else out[name] = rest_of_other ? both(one, *rest_of_other) : one;
  };
  for (const auto& [name, one] : (pa ? *pa : kNone).items())
    add(name, one, pb ? member(*pb, name.c_str()) : nullptr, others(b));
  for (const auto& [name, one] : (pb ? *pb : kNone).items())
    add(name, one, pa ? member(*pa, name.c_str()) : nullptr, others(a));
  return out;
}

Schema merged_value(const std::string& key, const Schema& a, const Schema& b, const std::string& where) {
  if (a == b) return a;
  if (key == "type" || key == "enum") {
    Schema values = common(as_array(a), as_array(b), key == "type");
    if (values.empty()) fail("json schema: {}: no {} is in both of two schemas", where, key);
    return values;
  }
  if (key == "required" && a.is_array() && b.is_array()) {
    Schema names = a;
    for (const Schema& name : b)
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    return names;
  }
  if (key == "items" || key == "additionalItems") return both(a, b);
  if (key == "additionalProperties") return a == false || b == false ? Schema(false) : both(a, b);
  if (a.is_number() && b.is_number() && key != "const") {
    const bool least = key.starts_with("min") || key == "exclusiveMinimum";
    return (a < b) == least ? b : a;
  }
  fail("json schema: {}: two schemas with different values of {} cannot be merged", where, key);
}

}  // namespace

bool is_assertion(const std::string& keyword) { return kAssertions.contains(keyword); }

void refuse_unsupported(const Schema& schema, const std::string& where) {
  for (const auto& [key, value] : schema.items())
    if (kUnsupported.contains(key) || (key == "uniqueItems" && value != false))
      fail("json schema: {}: the keyword {} is not supported", where, key);
}

Schema merge_schemas(const Schema& a, const Schema& b, const std::string& where) {
  if (a == true) return b;
  if (b == true) return a;
  if (a == false || b == false) return false;
  if (!a.is_object() || !b.is_object()) fail("json schema: {}: a schema must be an object, true or false", where);
  refuse_unsupported(a, where);
  refuse_unsupported(b, where);
  Schema out = a;
  for (const auto& [key, value] : b.items())
    if (is_assertion(key) && key != "properties")
      out[key] = out.contains(key) ? merged_value(key, out[key], value, where) : value;
  if (a.contains("properties") || b.contains("properties")) out["properties"] = merged_properties(a, b, where);
  return out;
}

}  // namespace sx
