// JSON schemas as grammars: texts that must and must not be in them, what random walks through the masks write, and
// every error.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>

#include "base/error.h"
#include "grammar_support.h"
#include "text/grammar/json_schema.h"
#include "text/unicode.h"

namespace sx {
namespace {

using Json = nlohmann::ordered_json;

struct Case {
  const char* schema;
  std::vector<std::string> yes, no;
};

const char* kTree =
    R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer"},
  "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 3}}, "required": ["value"],
         "additionalProperties": false}}})";

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {"{}",
       {"1", "-0.5e+10", "null", "\"a\"", "[]", "[1, {\"a\":[]}]", "{}", "{\n  \"a\": 1\n}", "true"},
       {"", "01", "tru", "[1,]", "{1:2}", "\"\n\"", "1.", ".5", "[  1]"}},
      {"true", {"1"}, {""}},
      {R"({"type": "string"})",
       {R"("")", R"("a\n\u00e9\ud83d\ude00é")", R"("\"\\")"},
       {"a", R"("\ud83d")", R"("\ude00")", R"("\q")", "\"\x01\"", R"("a)"}},
      {R"({"type": "boolean", "description": "x", "title": "y", "default": true, "examples": [1]})",
       {"true", "false"},
       {"null", "1"}},
      {R"({"type": ["integer", "null"]})", {"null", "0", "-12"}, {"1.5", "-0", "00", "\"1\""}},
      {R"({"type": "number"})", {"0", "-1.25", "1e5", "-0.0"}, {"1e", "+1", "1.", "0x1"}},
      {R"({"enum": ["a", 1, null, {"x": [1, 2]}, "\"é\n"]})",
       {"\"a\"", "1", "null", R"({"x":[1,2]})", "\"\\\"é\\n\""},
       {"a", "2", "\"b\""}},
      {R"({"type": "string", "enum": ["a", 1]})", {"\"a\""}, {"1"}},
      {R"({"const": {"a": "b"}})", {R"({"a":"b"})"}, {"{}"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"type": "null"}},
         "required": ["b"]})",
       {R"({"b":true})", R"({"a":1,"b":false})", R"({ "a": 1, "b": false, "c": null })", R"({"b": true,"c":null})"},
       {"{}", R"({"a":1})", R"({"b":true,"a":1})", R"({"b":true,})", R"({"a":1"b":true})", R"({"b":true,"d":1})",
        R"({"b" :true})"}},
      {R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}})",
       {"{}", R"({"a":null})", R"({"b":null})", R"({"a":null,"b":null})"},
       {R"({,"b":null})", R"({"a":null,})", R"({"b":null,"a":null})"}},
      {R"({"type": "object", "properties": {"a": {"type": "null"}, "ab": {"type": "null"}}, "required": ["a"],
         "additionalProperties": {"type": "integer"}})",
       {R"({"a":null})", R"({"a":null,"ab":null,"x":1,"abc":2,"":3,"b":4})", R"({"a":null,"y":1})"},
       {R"({"a":null,"ab":1})", R"({"a":null,"a":1})", R"({"a":null,"x":null})", R"({"x":1})",
        R"({"a":null,"\u0061":1})"}},
      {R"({"properties": {"é": {"type": "null"}, "n\"": {"type": "null"}}, "additionalProperties": true})",
       {"{}", "{\"é\":null}", "{\"è\":1}", "{\"éx\":1}", R"({"n\"":null,"n":2})"},
       {"{\"é\":1}", R"({"n\"":1})"}},
      {R"({"type": "object", "additionalProperties": {"type": "integer"}})",
       {"{}", R"({"a":1,"b":2})"},
       {R"({"a":"1"})"}},
      {R"({"type": "object", "additionalProperties": false})", {"{}"}, {R"({"a":1})"}},
      {R"({"type": "object"})", {"{}", R"({"a":[1]})"}, {"[]"}},
      {R"({"type": "object", "required": ["z"]})", {R"({"z":1})", R"({"z":[],"y":2})"}, {"{}", R"({"y":2})"}},
      {R"({"properties": {"a": false, "b": true}})", {"{}", R"({"b":[1]})"}, {R"({"a":1})"}},
      {R"({"type": "array", "items": {"type": "integer"}})", {"[]", "[1]", "[1, 2,3 ]"}, {"[\"a\"]", "[1,]", "[,1]"}},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3})",
       {"[1,2]", "[1,2,3]"},
       {"[]", "[1]", "[1,2,3,4]"}},
      {R"({"type": "array", "items": {"type": "null"}, "maxItems": 1})", {"[]", "[null]"}, {"[null,null]"}},
      {R"({"type": "array", "prefixItems": [{"type": "null"}, {"type": "integer"}], "items": {"type": "boolean"}, "maxItems": 3})",
       {"[null,1]", "[null,1,true]"},
       {"[]", "[null]", "[null,1,2]", "[null,1,true,true]"}},
      {R"({"items": [{"type": "null"}], "additionalItems": false})", {"[null]"}, {"[]", "[null,1]"}},
      {R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"}},
      {R"({"minItems": 1})", {"[1]", "[[],2]"}, {"[]"}},
      {R"({"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 2}]})", {"null", "\"ab\""}, {"\"abc\"", "1"}},
      {R"({"oneOf": [{"const": 1}, {"const": 2}]})", {"1", "2"}, {"3"}},
      {R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "anyOf": [{"required": ["a"]},
         {"required": ["b"]}]})",
       {R"({"a":null})", R"({"b":null})", R"({"a":null,"b":null})"},
       {"{}"}},
      {R"({"allOf": [{"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}, {"$ref": "#/definitions/b"}],
           "definitions": {"b": {"properties": {"b": {"type": "integer"}, "a": {"type": ["null", "string"]}}, "required": ["b"]}}})",
       {R"({"a":null,"b":1})"},
       {R"({"a":null})", R"({"b":1})", R"({"a":"x","b":1})"}},
      {R"({"allOf": [{"type": "integer", "minimum": 2}, {"minimum": 4, "maximum": 9}, {"type": "number", "maximum": 7}]})",
       {"4", "7"},
       {"3", "8", "4.5"}},
      {R"({"$ref": "#/$defs/a", "maxLength": 1, "$defs": {"a": {"type": "string"}}})", {"\"x\""}, {"\"xx\""}},
      {kTree,
       {R"({"value":1})", R"({"value":1,"children":[{"value":2,"children":[]}]})"},
       {R"({"children":[]})", R"({"value":1,"children":[1]})",
        R"({"value":1,"children":[{"value":1},{"value":1},{"value":1},{"value":1}]})"}},
      {R"({"type": "object", "properties": {"next": {"$ref": "#"}}})",
       {"{}", R"({"next":{"next":{}}})"},
       {R"({"next":1})"}},
      {R"({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"const": 1}}})", {"1"}, {"2"}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})", {"\"ab\"", "\"é\\n\\u0041\""}, {"\"a\"", "\"abcd\""}},
      {R"({"type": "string", "pattern": "^[a-c]+-\\d{2,3}$"})",
       {"\"a-12\"", "\"abc-123\""},
       {"\"-12\"", "\"a-1\"", "\"a-1234\"", "\"xa-12\"", "\"a-12x\""}},
      {R"({"type": "string", "pattern": "ab"})", {"\"ab\"", "\"xxabyy\""}, {"\"a\"", "\"ba\""}},
      {R"({"pattern": "^(?:a|bc)*?$|^x"})", {"\"\"", "\"abca\"", "\"xyz\""}, {"\"ac\"", "\"yx\""}},
      {R"({"pattern": "^[\"\\\\n\\s]$"})",
       {R"("\"")", R"("\\")", R"("n")", R"(" ")", R"("\n")"},
       {R"(""")", R"("\")", "\"\n\"", "\"a\""}},
      {R"({"pattern": "^[^a-y\\d]\\.\\u0041.$"})",
       {"\"z.A!\"", "\"é.Aé\"", R"("\".Ax")"},
       {"\"a.Ax\"", "\"1.Ax\"", "\"zxAx\"", R"("z.A\n")"}},
      {R"({"type": "string", "format": "date"})",
       {"\"2024-02-28\"", "\"1999-12-31\"", "\"2000-04-30\""},
       {"\"2024-13-01\"", "\"2024-02-30\"", "\"2000-04-31\"", "\"24-01-01\""}},
      {R"({"type": "string", "format": "date-time"})",
       {"\"2024-02-28T23:59:59Z\"", "\"2024-02-28T00:00:00.123+02:00\""},
       {"\"2024-02-28\"", "\"2024-02-28T24:00:00Z\""}},
      {R"({"type": "string", "format": "uuid"})", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123e4567\""}},
      {R"({"type": "string", "format": "email"})", {"\"x\""}, {}},
      {R"({"type": "number", "minimum": 0})", {"0", "0.5", "12.25", "0.0"}, {"-1", "-0.5", "-0"}},
      {R"({"type": "number", "exclusiveMinimum": 0, "maximum": 2})",
       {"0.5", "0.001", "1", "1.9", "2", "2.0"},
       {"0", "0.0", "2.1", "3", "-1"}},
      {R"({"type": "number", "minimum": -2, "exclusiveMaximum": 1})",
       {"-2", "-2.0", "-1.5", "-0.5", "0", "0.99"},
       {"-2.5", "1", "1.0", "-3"}},
      {R"({"type": "number", "minimum": -5, "maximum": -3})",
       {"-5", "-4.5", "-3", "-3.5"},
       {"-2.9", "-5.1", "-6", "3", "4"}},
  };
  return kCases;
}

TEST(GrammarSchema, AcceptsAndRefuses) {
  const TestVocabulary vocabulary;
  for (const Case& c : cases()) {
    const std::string grammar = gbnf_of_schema(c.schema);
    GrammarMatcher matcher(grammar, vocabulary.trie);
    for (const std::string& text : c.yes)
      EXPECT_TRUE(matches(matcher, text)) << c.schema << " on " << text << "\n" << grammar;
    for (const std::string& text : c.no)
      EXPECT_FALSE(matches(matcher, text)) << c.schema << " on " << text << "\n" << grammar;
  }
}

TEST(GrammarSchema, BetweenFixedTexts) {
  const TestVocabulary vocabulary;
  GrammarMatcher matcher(gbnf_of_schema(R"({"type": "null"})", "<tool>\n\"", "\\</tool>"), vocabulary.trie);
  EXPECT_TRUE(matches(matcher, "<tool>\n\"null\\</tool>"));
  EXPECT_FALSE(matches(matcher, "null"));
}

// Several schemas in one grammar: rules of their own, and references that lead into their own schema.
TEST(GrammarSchema, SeveralInOneGrammar) {
  const TestVocabulary vocabulary;
  const std::pair<std::string, std::string> schemas[] = {
      {"One",
       R"({"$ref": "#/$defs/X", "$defs": {"X": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}}})"},
      {"Two", R"({"$ref": "#/$defs/X", "$defs": {"X": {"enum": ["a", "b"]}}})"}};
  GrammarMatcher matcher(gbnf_of_schemas("root ::= \"(\" One \"|\" Two \")\"\n", schemas), vocabulary.trie);
  EXPECT_TRUE(matches(matcher, R"(([1, 2]|"a"))"));
  EXPECT_FALSE(matches(matcher, R"(("a"|[1, 2]))"));
  EXPECT_FALSE(matches(matcher, R"(([1, 2]|[1]))"));
  EXPECT_THROW(gbnf_of_schemas("root ::= One Three\n", schemas), Error);
}

TEST(GrammarSchema, IntegersInARangeAndNoOthers) {
  const TestVocabulary vocabulary;
  std::mt19937 random(3);
  for (int trial = 0; trial < 60; ++trial) {
    const int scale = trial % 3 == 0 ? 40 : 2500;
    const int low = int(random() % unsigned(2 * scale)) - scale, high = low + int(random() % unsigned(scale));
    const int open = trial % 4;  // 1: no minimum, 2: no maximum, 3: exclusive ones
    Json schema = {{"type", "integer"}};
    if (open != 1) schema[open == 3 ? "exclusiveMinimum" : "minimum"] = low - (open == 3);
    if (open != 2) schema[open == 3 ? "exclusiveMaximum" : "maximum"] = high + (open == 3 ? 0.5 : 0.0);
    GrammarMatcher matcher(gbnf_of_schema(schema.dump()), vocabulary.trie);
    for (int n = -3 * scale; n <= 3 * scale; ++n)
      ASSERT_EQ(matches(matcher, std::to_string(n)), (open == 1 || n >= low) && (open == 2 || n <= high))
          << schema << " on " << n;
    EXPECT_FALSE(matches(matcher, "0" + std::to_string(std::abs(low))));
    EXPECT_FALSE(matches(matcher, "-0"));
  }
  GrammarMatcher large(gbnf_of_schema(R"({"type": "integer", "minimum": 8999999999999999})"), vocabulary.trie);
  EXPECT_TRUE(matches(large, "8999999999999999"));
  EXPECT_TRUE(matches(large, "10000000000000000"));
  EXPECT_FALSE(matches(large, "8999999999999998"));
}

TEST(GrammarSchema, ErrorsNameWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"", "not valid JSON"},
      {"{\"a\": }", "not valid JSON"},
      {"3", "#: a schema must be an object"},
      {"false", "allows nothing"},
      {R"({"not": {}})", "#: the keyword not is not supported"},
      {R"({"properties": {"a": {"type": "array", "uniqueItems": true}}})", "#/properties/a: the keyword uniqueItems"},
      {R"({"allOf": [{"if": true}]})", "keyword if"},
      {R"({"patternProperties": {}})", "patternProperties"},
      {R"({"type": "integer", "multipleOf": 2})", "multipleOf"},
      {R"({"type": "text"})", "type \"text\" is not known"},
      {R"({"type": []})", "type names none"},
      {R"({"enum": []})", "enum allows nothing"},
      {R"({"enum": 1})", "enum must be a list"},
      {R"({"anyOf": []})", "anyOf must be a list"},
      {R"({"anyOf": [false]})", "anyOf allows nothing"},
      {R"({"allOf": {}})", "allOf must be a list"},
      {R"({"properties": []})", "properties must be an object"},
      {R"({"required": "a"})", "required must be a list"},
      {R"({"required": [1]})", "required must be a list"},
      {R"({"required": ["a"], "additionalProperties": false})", "property \"a\" is required but forbidden"},
      {R"({"$ref": "#/nowhere"})", "leads nowhere"},
      {R"({"$ref": "other.json"})", "leads nowhere"},
      {R"({"$ref": "#/a~2"})", "leads nowhere"},
      {R"({"$ref": 1})", "$ref must be a text"},
      {R"({"$ref": "#"})", "may not begin with itself"},
      {R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "may not begin with itself"},
      {R"({"allOf": [{"$ref": "#"}]})", "nested too deep"},
      {R"({"$ref": "#", "type": "string"})", "nested too deep"},
      {R"({"minItems": 3, "maxItems": 2})", "maxItems is less"},
      {R"({"minItems": -1})", "minItems must be a whole number"},
      {R"({"minLength": 0.5})", "minLength must be a whole number"},
      {R"({"minLength": 200000})", "minLength of more than"},
      {R"({"minLength": 3, "maxLength": 2})", "maxLength is less"},
      {R"({"prefixItems": [{}], "items": false, "minItems": 2})", "more items than are allowed"},
      {R"({"prefixItems": {}})", "prefixItems must be a list"},
      {R"#({"pattern": "a", "maxLength": 2})#", "only one of"},
      {R"({"type": "integer", "minimum": "1"})", "minimum must be a number"},
      {R"({"type": "number", "minimum": 0.5})", "whole number"},
      {R"({"type": "integer", "minimum": 3, "maximum": 2})", "no number"},
      {R"({"type": "integer", "maximum": 1e300})", "too large"},
      {R"({"allOf": [{"type": "string"}, {"type": "null"}]})", "no type is in both"},
      {R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})", "different values of pattern"},
      {R"({"allOf": [{"additionalProperties": false}, {"properties": {"a": {}}}]})",
       "forbidden by additionalProperties"},
      {R"#({"pattern": "a(?=b)"})#", "groups other than"},
      {R"#({"pattern": "a\\b"})#", "\\b is not supported"},
      {R"#({"pattern": "(a)\\1"})#", "\\1 is not supported"},
      {R"#({"pattern": "a^b"})#", "an anchor"},
      {R"#({"pattern": "a$b"})#", "an anchor"},
      {R"#({"pattern": "(^a)"})#", "an anchor"},
      {R"#({"pattern": "(a$)"})#", "an anchor"},
      {R"#({"pattern": "(a"})#", "not closed"},
      {R"#({"pattern": "a)"})#", "not opened"},
      {R"#({"pattern": "[a"})#", "not closed"},
      {R"#({"pattern": "[b-a]"})#", "a range"},
      {R"#({"pattern": "*"})#", "a repetition of nothing"},
      {R"#({"pattern": "a{x}"})#", "a repetition that is not"},
      {R"#({"pattern": "a{2,1}"})#", "less than its least"},
      {R"#({"pattern": "\\x4"})#", "too short"},
      {R"#({"pattern": "a\\"})#", "ends with a backslash"},
      {R"#({"pattern": "[\\u0000]"})#", "a class without characters"},
      {R"({"pattern": ")" + std::string(1000, '(') + R"("})", "nested too deep"},
      {std::string(100, '[') + std::string(100, ']'), "nested more than 64"},
      {"\"" + std::string(400000, 'x') + "\"", "at most 327680"},
  };
  for (const auto& [schema, message] : wrong) {
    std::string error;
    try {
      gbnf_of_schema(schema);
    } catch (const Error& e) { error = e.what(); }
    EXPECT_NE(error.find(message), std::string::npos) << schema.substr(0, 100) << "\n  gives: " << error;
  }
}

// --- Random walks.

size_t characters(const std::string& text) {
  return size_t(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::wstring wide(const std::string& text) {
  std::wstring out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    out += wchar_t(step.code);
    at += step.length;
  }
  return out;
}

// Whether a value is as a schema says, for the keywords of these tests; written from the standard, not from the
// translation.
bool valid(const Json& schema, const Json& value, const Json& root) {
  if (schema.is_boolean()) return schema.get<bool>();
  const auto has = [&](const char* key) { return schema.contains(key); };
  const auto holds = [&](const Json& one) { return valid(one, value, root); };
  const auto is = [&](const Json& type) {
    if (type == "integer") return value.is_number_integer();
    return type == (value.is_number() ? "number" : value.type_name());
  };
  if (has("$ref")) {
    const std::string path = schema["$ref"];
    if (!valid(path == "#" ? root : root[Json::json_pointer(path.substr(1))], value, root)) return false;
  }
  if (has("type")) {
    const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
    if (std::none_of(types.begin(), types.end(), is)) return false;
  }
  if (has("enum") && std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end())
    return false;
  if (has("const") && schema["const"] != value) return false;
  for (const char* key : {"anyOf", "oneOf"})
    if (has(key) && std::none_of(schema[key].begin(), schema[key].end(), holds)) return false;
  if (has("allOf") && !std::all_of(schema["allOf"].begin(), schema["allOf"].end(), holds)) return false;
  if (value.is_number()) {
    const double x = value.get<double>();
    if (has("minimum") && !(x >= schema["minimum"].get<double>())) return false;
    if (has("maximum") && !(x <= schema["maximum"].get<double>())) return false;
    if (has("exclusiveMinimum") && !(x > schema["exclusiveMinimum"].get<double>())) return false;
    if (has("exclusiveMaximum") && !(x < schema["exclusiveMaximum"].get<double>())) return false;
  }
  if (value.is_string()) {
    const std::string text = value;
    if (has("minLength") && characters(text) < schema["minLength"].get<size_t>()) return false;
    if (has("maxLength") && characters(text) > schema["maxLength"].get<size_t>()) return false;
    if (has("pattern") && !std::regex_search(wide(text), std::wregex(wide(schema["pattern"])))) return false;
  }
  if (value.is_array()) {
    if (has("minItems") && value.size() < schema["minItems"].get<size_t>()) return false;
    if (has("maxItems") && value.size() > schema["maxItems"].get<size_t>()) return false;
    const bool older = has("items") && schema["items"].is_array();
    const Json fixed = older ? schema["items"] : has("prefixItems") ? schema["prefixItems"] : Json::array();
    const char* rest = older ? "additionalItems" : "items";
    for (size_t i = 0; i < value.size(); ++i)
      if (i < fixed.size() ? !valid(fixed[i], value[i], root) : has(rest) && !valid(schema[rest], value[i], root))
        return false;
  }
  if (value.is_object()) {
    if (has("required"))
      for (const Json& name : schema["required"])
        if (!value.contains(name.get<std::string>())) return false;
    for (const auto& [name, one] : value.items()) {
      if (has("properties") && schema["properties"].contains(name)) {
        if (!valid(schema["properties"][name], one, root)) return false;
      } else if (has("additionalProperties") && !valid(schema["additionalProperties"], one, root)) return false;
    }
  }
  return true;
}

// Writes a text by random allowed tokens; after a while it takes those that close what is open.
std::string random_text(GrammarMatcher& matcher, const TestVocabulary& vocabulary, std::mt19937& random) {
  std::string text;
  auto state = matcher.start();
  const int patience = int(random() % 60);
  for (int step = 0; step < 20000; ++step) {
    const GrammarMask mask = matcher.mask(state);
    std::vector<Token> choices;
    for (Token t = 0; t < vocabulary.trie->vocab(); ++t)
      if (t != vocabulary.end && allows(mask, t) && (t >= 256 || (t >= 0x20 && t < 0x80) || random() % 8 == 0))
        choices.push_back(t);
    Token chosen = kNoToken;
    if (allows(mask, vocabulary.end) && (step > patience || random() % 4 == 0)) return text;
    if (step > patience && random() % 8 != 0)
      for (char c : std::string_view(text.ends_with('{') ? "}\"" : "\"}]1n"))
        if (chosen == kNoToken && allows(mask, Token(c))) chosen = Token(c);
    if (chosen == kNoToken && choices.empty()) continue;  // the random again
    if (chosen == kNoToken) chosen = choices[random() % choices.size()];
    text += vocabulary.bytes[size_t(chosen)];
    state = matcher.advance(state, chosen);
  }
  ADD_FAILURE() << "no end: " << text.substr(0, 200);
  return text;
}

TEST(GrammarSchema, RandomWalksWriteValidTexts) {
  const TestVocabulary vocabulary({"\":", "{\"", "\"}", "\", \"", "true", "null", "[[", "]]", "12", "é", "\xF0\x9F",
                                   "\\n", "\\u", "ab", " \"", "},", "00"});
  std::mt19937 random(11);
  std::vector<std::string> schemas;
  for (const Case& c : cases()) schemas.emplace_back(c.schema);
  schemas.emplace_back(R"({"type": "object", "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 20},
         "age": {"type": "integer",
    "minimum": 0, "maximum": 150}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 4},
         "home": {"type": "object", "properties":
    {"zip": {"type": "string", "pattern": "^[0-9]{5}(-[0-9]{4})?$"}}, "required": ["zip"], "additionalProperties": {"type": "boolean"}}},
    "required": ["name", "home"], "additionalProperties": false})");
  for (const std::string& schema : schemas) {
    const Json parsed = Json::parse(schema);
    GrammarMatcher matcher(gbnf_of_schema(schema), vocabulary.trie);
    for (int i = 0; i < 40; ++i) {
      const std::string text = random_text(matcher, vocabulary, random);
      ASSERT_TRUE(Json::accept(text)) << schema << "\n" << text.substr(0, 300);
      ASSERT_TRUE(valid(parsed, Json::parse(text), parsed)) << schema << "\n" << text;
    }
  }
}

TEST(GrammarSchema, RegularExpressionsOfWholeTexts) {
  const TestVocabulary vocabulary({"ab", "12", "\"x", "é"});
  struct Regex {
    const char* pattern;
    std::vector<std::string> yes, no;
  };
  const Regex all[] = {
      {R"(((25[0-5]|(2[0-4]|1\d|[1-9]|)\d)\.){3}(25[0-5]|(2[0-4]|1\d|[1-9]|)\d))",
       {"1.2.3.4", "255.0.19.200"},
       {"", "1.2.3", "256.1.1.1", " 1.2.3.4", "1.2.3.4 "}},
      {"^a+$|b", {"a", "aaa", "b"}, {"", "ab", "cb"}},
      {R"("[^"\\]*")", {"\"\"", "\"é\n\""}, {"\"", "\"\\\""}},  // as they are: nothing is escaped
      {".*", {"", "a\"\\"}, {"a\nb"}},
      {"\\w{2,3}?", {"ab", "a_1"}, {"a", "abcd", "a-"}},
  };
  for (const Regex& regex : all) {
    GrammarMatcher matcher(gbnf_of_regex(regex.pattern), vocabulary.trie);
    for (const std::string& text : regex.yes) EXPECT_TRUE(matches(matcher, text)) << regex.pattern << " " << text;
    for (const std::string& text : regex.no) EXPECT_FALSE(matches(matcher, text)) << regex.pattern << " " << text;
  }
  for (const std::string wrong : {"[.*", "(a", "a)", "*a", "a{2", "\\p{L}", "(?=a)", "a^b", "\\", "a{3,1}", "a{,5}",
                                  "a{}", "a{2,", "a{2;3}", "a{100001}", "a{2,99999999999999999999}", "a{1,2}{3}"}) {
    std::string error;
    try {
      gbnf_of_regex(wrong);
    } catch (const Error& e) { error = e.what(); }
    EXPECT_TRUE(error.starts_with("pattern \"" + wrong.substr(0, 1))) << wrong << ": " << error;  // never of a grammar
  }
  EXPECT_NO_THROW(parse_gbnf(gbnf_of_regex("a{100000}b{0,}c{2,2}")));
  try {
    gbnf_of_regex(std::string(30'000, 'a'));
    ADD_FAILURE();
  } catch (const Error& e) { EXPECT_TRUE(std::string(e.what()).starts_with("a pattern of 30000 bytes")) << e.what(); }
}

TEST(GrammarSchema, TheValidatorSeesFaults) {
  int seen = 0;
  for (const Case& c : cases()) {
    const Json schema = Json::parse(c.schema);
    for (const std::string& text : c.yes) EXPECT_TRUE(valid(schema, Json::parse(text), schema)) << c.schema << text;
    for (const std::string& text : c.no)
      if (Json::accept(text)) seen += !valid(schema, Json::parse(text), schema);
  }
  EXPECT_GT(seen, 60);
}

}  // namespace
}  // namespace sx
