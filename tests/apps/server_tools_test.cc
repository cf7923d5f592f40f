// Tool calls: found in texts that come in any pieces, never half, never broken; the grammar that forces one.
#include "server/tools.h"

#include <gtest/gtest.h>
#include <specextend/specextend.h>

#include <nlohmann/json.hpp>
#include <random>

#include "text/chat.h"
#include "text/grammar_support.h"

namespace sx::server {
namespace {

using Json = nlohmann::ordered_json;

struct Heard {
  std::string content;
  std::vector<ToolCall> calls;
};

// The arguments of "f" by their types; "get_it" says nothing of its own.
constexpr const char* kTyped =
    R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
  "s": {"type": "string"}, "i": {"type": "integer"}, "b": {"type": "boolean"}, "list": {"type": "array"}, "maybe": {"type": ["string", "null"]},
  "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "colour": {"$ref": "#/$defs/Colour"}, "code": {"enum": ["1", "2"]}},
  "$defs": {"Colour": {"enum": ["red", "7"]}}}}}, {"type": "function", "function": {"name": "get_it", "parameters": {}}}])";

Heard hear(ToolFormat format, const std::string& text, size_t piece, bool parallel = true) {
  ToolParser parser(format, {"f", "get_it"}, parallel, kTyped);
  Heard heard;
  const auto take = [&](ToolParser::Output out) {
    heard.content += out.content();
    for (const ToolCall& call : out.calls()) heard.calls.push_back(call);
    return out.taken;
  };
  size_t taken = 0;
  for (size_t i = 0; i < text.size(); i += piece) {
    const size_t now = take(parser.add(text.substr(i, piece)));
    EXPECT_GE(now, taken);
    EXPECT_LE(now, std::min(text.size(), i + piece));
    taken = now;
  }
  EXPECT_EQ(take(parser.finish()), text.size());
  EXPECT_TRUE(parser.finish().content().empty());
  return heard;
}

// "content|name(arguments)|..." for any way of cutting the text.
std::string told(ToolFormat format, const std::string& text, bool parallel = true) {
  std::string first;
  for (const size_t piece : {text.size() + 1, size_t(1), size_t(2), size_t(3), size_t(7)}) {
    const Heard heard = hear(format, text, piece, parallel);
    std::string out = heard.content;
    for (const ToolCall& call : heard.calls) {
      out += "|" + call.name + "(" + call.arguments + ")";
      EXPECT_TRUE(Json::parse(call.arguments).is_object());
      EXPECT_FALSE(call.id.empty());
    }
    if (first.empty()) first = out;
    EXPECT_EQ(out, first) << "pieces of " << piece << " of " << text;
  }
  return first;
}
std::string hermes(const std::string& text) { return told(ToolFormat::kHermes, text); }
std::string llama(const std::string& text) { return told(ToolFormat::kLlama, text); }
std::string mistral(const std::string& text) { return told(ToolFormat::kMistral, text); }

TEST(ServerTools, HermesCalls) {
  EXPECT_EQ(hermes(R"(<tool_call>
{"name": "f", "arguments": {"a": [1, "x"]}}
</tool_call>)"),
            R"(|f({"a":[1,"x"]}))");
  EXPECT_EQ(hermes(R"(Let me see.

<tool_call>{"name": "f", "arguments": {}}</tool_call>
<tool_call>{"name": "get_it"}</tool_call>
)"),
            R"(Let me see.|f({})|get_it({}))");
  // As SmolLM2 writes them.
  EXPECT_EQ(
      hermes(R"(<tool_call>[{"name": "f", "arguments": {"q": "é"}}, {"name": "get_it", "arguments": {}}]</tool_call>)"),
      R"(|f({"q":"é"})|get_it({}))");
  // The closing mark inside a text of the arguments, quotes and braces in texts.
  EXPECT_EQ(hermes(R"(<tool_call>{"name": "f", "arguments": {"a": "</tool_call> \" } \\"}}</tool_call>)"),
            R"(|f({"a":"</tool_call> \" } \\"}))");
  EXPECT_EQ(hermes(R"(<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>)"), R"(|f({"a":1}))");
  EXPECT_EQ(hermes(R"(<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>)"), R"(|f({"a":1}))");
  // The answer ended before the closing mark.
  EXPECT_EQ(hermes(R"(<tool_call>{"name": "f", "arguments": {}})"), "|f({})");
  EXPECT_EQ(hermes(R"(<tool_call>{"name": "f", "arguments": {}}</tool)"), "|f({})");
  EXPECT_EQ(hermes(R"(<tool_call>{"name": "f"}</tool_call> Done. )"), " Done.|f({})");
}

TEST(ServerTools, WhatIsNoCallIsContent) {
  for (const char* text :
       {"plain text", "a < b <tool", "<tool_call>", "<tool_call>{\"name\": \"f\", \"argum",
        "<tool_call>hello</tool_call>", R"(<tool_call>{"name": "unknown", "arguments": {}}</tool_call>)",
        R"(<tool_call>{"name": "f", "arguments": 5}</tool_call>)",
        R"(<tool_call>{"name": "f", "arguments": "no"}</tool_call>)", R"(<tool_call>{"name": 5}</tool_call>)",
        R"(<tool_call>{'name': 'f'}</tool_call>)", R"(<tool_call>{"name": "f"} and</tool_call>)",
        "<tool_call>[]</tool_call>", R"(<tool_call>[{"name": "f"}, {"name": "unknown"}]</tool_call>)",
        "<tool_call>{]</tool_call>", "spaces at the end \n ", "  \n", "<<tool_call", "x <tool_call> y <tool_call> z"})
    EXPECT_EQ(hermes(text), text);
  const std::string deep = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": " + std::string(2000, '[') +
                           std::string(2000, ']') + "}}</tool_call>";
  EXPECT_EQ(hermes(deep), deep);
  // A call after something that only looked like one.
  EXPECT_EQ(hermes(R"(<tool_call>oh <tool_call>{"name": "f"}</tool_call>)"), "<tool_call>oh|f({})");
}

TEST(ServerTools, TextIsHeldNoLongerThanNeeded) {
  ToolParser parser(ToolFormat::kHermes, {"f"}, true);
  EXPECT_EQ(parser.add("Hello <to").content(), "Hello");
  EXPECT_EQ(parser.add("ol box").content(), " <tool box");
  EXPECT_EQ(parser.add(" and").content(), " and");
  EXPECT_EQ(parser.add("\n<tool_call>{\"name\": \"f\"").content(), "");
  const ToolParser::Output out = parser.add("}</tool_call>");
  ASSERT_EQ(out.calls().size(), 1u);
  EXPECT_EQ(out.calls()[0].id.substr(0, 5), "call_");
  EXPECT_EQ(out.calls()[0].id.size(), 29u);
  ToolParser other(ToolFormat::kLlama, {"f"}, true);
  EXPECT_EQ(other.add("He").content(), "He");  // decided at once
  EXPECT_EQ(other.add("{\"name\": \"f\"}").content(), "{\"name\": \"f\"}");
}

TEST(ServerTools, LlamaCalls) {
  EXPECT_EQ(llama(R"({"name": "f", "parameters": {"a": 1}})"), R"(|f({"a":1}))");
  EXPECT_EQ(llama(R"(
 {"type": "function", "name": "f", "parameters": {"a": "}"}}; {"name": "get_it", "parameters": {}}
)"),
            R"(|f({"a":"}"})|get_it({}))");
  EXPECT_EQ(llama(R"(<|python_tag|>{"name": "f", "parameters": {}})"), "|f({})");
  EXPECT_EQ(llama(R"({"name": "f", "parameters": {}} So it is.)"), " So it is.|f({})");
  for (const char* text :
       {"text", "", "{\"a\": 1} and {\"name\": \"f\"}", "{\"name\": \"f\"", "<|python_tag|>print()", "<|py", "[f(a=1)]",
        "See {\"name\": \"f\"}", " \n", "{\"name\": \"unknown\", \"parameters\": {}}"})
    EXPECT_EQ(llama(text), text);
}

TEST(ServerTools, MistralCalls) {
  EXPECT_EQ(mistral(R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "get_it", "arguments": {}}])"),
            R"(|f({"a":1})|get_it({}))");
  EXPECT_EQ(mistral(R"(Well [TOOL_CALLS][{"name": "f", "arguments": {}}])"), "Well|f({})");
  for (const char* text : {"[TOOL", "[1, 2]", "[TOOL_CALLS] none", "[TOOL_CALLS] [{\"name\": \"f\""})
    EXPECT_EQ(mistral(text), text);
  EXPECT_EQ(hear(ToolFormat::kMistral, R"([TOOL_CALLS] [{"name": "f"}])", 5).calls.at(0).id.size(),
            9u);  // as its templates want it
}

TEST(ServerTools, OnlyTheFirstIfNotParallel) {
  const char* text =
      R"(<tool_call>[{"name": "f"}, {"name": "get_it"}]</tool_call><tool_call>{"name": "f"}</tool_call>)";
  EXPECT_EQ(told(ToolFormat::kHermes, text, false), "|f({})");
  EXPECT_EQ(told(ToolFormat::kHermes, text, true), "|f({})|get_it({})|f({})");
}

TEST(ServerTools, NamedCallsOfMistral) {
  const auto named = [](const std::string& text) { return told(ToolFormat::kMistralNamed, text); };
  EXPECT_EQ(named(R"([TOOL_CALLS]f[ARGS]{"s": "[ARGS] ]}"})"), R"(|f({"s":"[ARGS] ]}"}))");
  EXPECT_EQ(named(R"(I look.
[TOOL_CALLS]f[ARGS]{"i": 1}[TOOL_CALLS]get_it[ARGS]{})"),
            R"(I look.|f({"i":1})|get_it({}))");
  EXPECT_EQ(named(R"([TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{"i": 1})"), R"(|f({"i":1}))");
  EXPECT_EQ(hear(ToolFormat::kMistralCallId, R"([TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{})", 3).calls.at(0).id,
            "abc123XYZ");
  EXPECT_EQ(hear(ToolFormat::kMistralCallId, R"([TOOL_CALLS]f[ARGS]{})", 3).calls.at(0).id.size(), 9u);
  EXPECT_EQ(named(R"([TOOL_CALLS] f [ARGS] {"i": 1} done)"), R"( done|f({"i":1}))");
  // The form of its older models.
  EXPECT_EQ(named(R"([TOOL_CALLS] [{"name": "f", "arguments": {"i": 1}}])"), R"(|f({"i":1}))");
  for (const char* text : {"[TOOL_CALLS]", "[TOOL_CALLS]f", "[TOOL_CALLS]f[ARGS]", "[TOOL_CALLS]f[ARGS]{\"a\": ",
                           "[TOOL_CALLS]unknown[ARGS]{}", "[TOOL_CALLS]f[ARGS][1]", "[TOOL_CALLS]f{}",
                           "[TOOL_CALLS]f[CALL_ID]x", "[TOOL_CALLS]f[ARGS]{'a': 1}", "[TOOL_CALLS]f g[ARGS]{}"})
    EXPECT_EQ(named(text), text);
  EXPECT_EQ(named("[TOOL_CALLS]unknown[ARGS]{} [TOOL_CALLS]f[ARGS]{}"), "[TOOL_CALLS]unknown[ARGS]{}|f({})");
}

TEST(ServerTools, CallsWithParametersOfQwen) {
  const auto qwen = [](const std::string& text) { return told(ToolFormat::kQwenCoder, text); };
  EXPECT_EQ(
      qwen(
          "Well.\n\n<tool_call>\n<function=f>\n<parameter=s>\nif a < b:\n  return '</tool_call>'\n</parameter>\n<parameter=i>\n12\n</parameter>\n"
          "</function>\n</tool_call>"),
      R"(Well.|f({"s":"if a < b:\n  return '</tool_call>'","i":12}))");
  // What each type makes of a value.
  const auto value = [&](const std::string& key, const std::string& text) {
    const Heard heard = hear(
        ToolFormat::kQwenCoder,
        "<tool_call>\n<function=f>\n<parameter=" + key + ">\n" + text + "\n</parameter>\n</function>\n</tool_call>", 3);
    return heard.calls.empty() ? "no call" : Json::parse(heard.calls[0].arguments).at(key).dump();
  };
  EXPECT_EQ(value("s", "12"), "\"12\"");
  EXPECT_EQ(value("s", "null"), "\"null\"");
  EXPECT_EQ(value("s", " kept \n"), R"(" kept \n")");
  EXPECT_EQ(value("i", "-3"), "-3");
  EXPECT_EQ(value("i", "many"), "\"many\"");
  EXPECT_EQ(value("b", "True"), "true");
  EXPECT_EQ(value("b", "false"), "false");
  EXPECT_EQ(value("list", "[1, {\"a\": null}]"), "[1,{\"a\":null}]");
  EXPECT_EQ(value("list", "[1, "), "\"[1, \"");
  EXPECT_EQ(value("maybe", "None"), "null");
  EXPECT_EQ(value("maybe", "12"), "\"12\"");
  EXPECT_EQ(value("either", "null"), "null");
  EXPECT_EQ(value("either", "12"), "12");
  EXPECT_EQ(value("colour", "7"), "\"7\"");
  EXPECT_EQ(value("code", "1"), "\"1\"");
  EXPECT_EQ(value("unknown", "{\"a\": 1}"), "{\"a\":1}");
  EXPECT_EQ(value("unknown", "a"), "\"a\"");
  // Several calls, in one block or in several; none of the arguments; the marks on one line.
  EXPECT_EQ(
      qwen(
          "<tool_call><function=f></function></tool_call>\n<tool_call><function=get_it><parameter=x>1</parameter></function></tool_call>"),
      R"(|f({})|get_it({"x":1}))");
  EXPECT_EQ(qwen("<tool_call>\n<function=f>\n</function>\n<function=get_it>\n</function>\n</tool_call>"),
            "|f({})|get_it({})");
  // Models forget the outer marks now and then; some answer in the form of Hermes.
  EXPECT_EQ(qwen("Hm <function=f>\n<parameter=i>\n1\n</parameter>\n</function>\n</tool_call> so"),
            R"(Hm so|f({"i":1}))");
  EXPECT_EQ(qwen("<function=f></function>"), "|f({})");
  EXPECT_EQ(qwen("<tool_call><function=f></function>"), "|f({})");
  EXPECT_EQ(qwen("<tool_call><function=f></function></tool"), "|f({})");
  EXPECT_EQ(qwen("<tool_call><function=f></function> and"), " and|f({})");
  EXPECT_EQ(qwen(R"(<tool_call>{"name": "f", "arguments": {"i": 1}}</tool_call>)"), R"(|f({"i":1}))");
  for (const char* text :
       {"a <tool_call", "<tool_call>", "<tool_call>\n<function", "<tool_call><function=f", "<tool_call><function=f>",
        "<tool_call><function=f><parameter=s>x", "<tool_call><function=f><parameter=s>x</parameter>",
        "<tool_call><function=unknown></function></tool_call>", "<function=f<parameter=s>", "<tool_call>f</tool_call>",
        "<tool_call><function=f>text</function></tool_call>", "<function>"})
    EXPECT_EQ(qwen(text), text);
  // A broken call behind a whole one is text.
  EXPECT_EQ(qwen("<tool_call><function=f></function><function=get_it>oops</function></tool_call>"),
            "<function=get_it>oops</function></tool_call>|f({})");
  EXPECT_EQ(
      told(ToolFormat::kQwenCoder, "<tool_call><function=f></function><function=get_it></function></tool_call>", false),
      "|f({})");
}

TEST(ServerTools, OtherForms) {
  EXPECT_EQ(
      told(
          ToolFormat::kGlm,
          "I see.<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>12</arg_value>\n<arg_key>i</arg_key><arg_value>12</arg_value></tool_call>"
          "<tool_call>get_it</tool_call>"),
      R"(I see.|f({"s":"12","i":12})|get_it({}))");
  for (const char* text : {"<tool_call>f<arg_key>s</arg_key></tool_call>", "<tool_call>unknown</tool_call>",
                           "<tool_call>f", "<tool_call>f g</tool_call>"})
    EXPECT_EQ(told(ToolFormat::kGlm, text), text);
  EXPECT_EQ(
      told(
          ToolFormat::kMiniMax,
          "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">a\"b</parameter>\n</invoke>\n<invoke name=\"get_it\">\n"
          "</invoke>\n</minimax:tool_call>"),
      R"(|f({"s":"a\"b"})|get_it({}))");
  EXPECT_EQ(told(ToolFormat::kFunctionary, "<function=f>{\"i\": 1}</function><function=get_it>{}</function>"),
            R"(|f({"i":1})|get_it({}))");
  EXPECT_EQ(
      told(ToolFormat::kNemotron,
           R"(<TOOLCALL>[{"name": "f", "arguments": {"i": 1}}, {"name": "get_it", "arguments": "{}"}]</TOOLCALL>)"),
      R"(|f({"i":1})|get_it({}))");
  EXPECT_EQ(told(ToolFormat::kApriel, R"(<tool_calls>[{"name": "f", "arguments": {"i": 1}}]</tool_calls>)"),
            R"(|f({"i":1}))");
}

// A long value in small pieces is looked at once, not once for each piece.
TEST(ServerTools, LongValuesAreReadOnce) {
  const std::string code(1 << 20, '<');
  const Heard heard = hear(ToolFormat::kQwenCoder,
                           "<tool_call><function=f><parameter=s>" + code + "</parameter></function></tool_call>", 4);
  ASSERT_EQ(heard.calls.size(), 1u);
  EXPECT_EQ(heard.calls[0].arguments.size(), code.size() + 8);
}

// Pieces of calls in any order: however the text is cut the same is found, and no byte is lost or told twice.
TEST(ServerTools, AnyTextInAnyPieces) {
  const char* kPieces[] = {"<tool_call>",
                           "</tool_call>",
                           "<function=",
                           "f",
                           ">",
                           "</function>",
                           "<parameter=",
                           "s",
                           "</parameter>",
                           "\n",
                           " ",
                           "[TOOL_CALLS]",
                           "[ARGS]",
                           "[CALL_ID]",
                           "{",
                           "}",
                           "{}",
                           "{\"name\": \"f\"}",
                           "[",
                           "]",
                           "<arg_key>",
                           "</arg_key>",
                           "<arg_value>",
                           "</arg_value>",
                           "<",
                           "</",
                           "text",
                           "<minimax:tool_call>",
                           "</minimax:tool_call>",
                           "<invoke name=\"",
                           "\">",
                           "</invoke>",
                           "<parameter name=\"",
                           "get_it"};
  std::mt19937 random(5);
  for (const ToolFormat format :
       {ToolFormat::kHermes, ToolFormat::kLlama, ToolFormat::kMistral, ToolFormat::kMistralNamed,
        ToolFormat::kMistralCallId, ToolFormat::kQwenCoder, ToolFormat::kGlm, ToolFormat::kMiniMax,
        ToolFormat::kFunctionary, ToolFormat::kNemotron, ToolFormat::kApriel})
    for (int trial = 0; trial < 400; ++trial) {
      std::string text;
      for (unsigned n = random() % 14; n > 0; --n) text += kPieces[random() % std::size(kPieces)];
      const Heard heard = hear(format, text, text.size() + 1);
      EXPECT_EQ(told(format, text).substr(0, heard.content.size()), heard.content);
      EXPECT_TRUE(!heard.calls.empty() || heard.content == text) << text;
    }
}

ToolStyle style_of(const std::string& source) {
  const ChatTemplate chat(source);
  return tool_style(source, [&](const std::string& messages, const std::string& tools) {
    return chat.render(Json::parse(messages), Json::parse(tools), true);
  });
}

TEST(ServerTools, StylesByTemplate) {
  const auto is = [](const char* source, ToolFormat format, bool shown) {
    const ToolStyle style = style_of(source);
    return style.format == format && style.in_template == shown;
  };
  EXPECT_TRUE(is("{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}", ToolFormat::kHermes, false));
  EXPECT_TRUE(is("", ToolFormat::kHermes, false));
  EXPECT_TRUE(is("{% if tools %}<tools>{{ tools }}</tools> <tool_call>{% endif %}", ToolFormat::kHermes, true));
  EXPECT_TRUE(is("{% if tools %}[AVAILABLE_TOOLS]{{ tools }}{% endif %}[TOOL_CALLS]", ToolFormat::kMistral, true));
  EXPECT_TRUE(is("{{ tools }}[TOOL_CALLS]f[ARGS]", ToolFormat::kMistralNamed, true));
  EXPECT_TRUE(is("{{ tools }}[TOOL_CALLS]f[CALL_ID]x[ARGS]", ToolFormat::kMistralCallId, true));
  EXPECT_TRUE(is("{{ tools }}<tool_call>\n<function=f>\n<parameter=a>", ToolFormat::kQwenCoder, true));
  EXPECT_TRUE(is("{{ tools }}<tool_call>f<arg_key>", ToolFormat::kGlm, true));
  EXPECT_TRUE(is("{{ tools }}<function=f>{}</function>", ToolFormat::kFunctionary, true));
  EXPECT_TRUE(
      is("{% if tools %}<|start_header_id|>{{ tools }}{\"name\": function name, \"parameters\": dict}{% endif %}",
         ToolFormat::kLlama, true));
  EXPECT_TRUE(is("<|start_header_id|>{{ m.role }}<|end_header_id|>", ToolFormat::kHermes, false));
  // The word alone shows no tools.
  EXPECT_TRUE(is("<tool_call>{# no tools #}", ToolFormat::kHermes, false));
}

TEST(ServerTools, ArgumentsAsTheTemplateWantsThem) {
  const auto text = [](const std::string& arguments) {
    return style_of("<tool_call>{% for m in messages %}{% for c in m.tool_calls or [] %}{{ " + arguments +
                    " }}{% endfor %}{% endfor %}")
        .text_arguments;
  };
  EXPECT_FALSE(text("c.function.arguments | tojson"));
  EXPECT_FALSE(text("c.function.arguments if c.function.arguments is string else c.function.arguments | tojson"));
  EXPECT_TRUE(text("c.function.arguments"));  // would be printed as Python prints a dict
  EXPECT_TRUE(text("'{\"arguments\": ' + c.function.arguments + '}'"));
  EXPECT_FALSE(text("c.function.arguments.items() | map('join', '=') | join"));
  EXPECT_FALSE(text("c.function.name"));  // says nothing
  EXPECT_FALSE(style_of("<tool_call>{{ raise_exception('never') }}").text_arguments);
}

const char* kTools =
    R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}},
  "required": ["a"]}}}, {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}}])";

TEST(ServerTools, ToldInTheSystemMessage) {
  Json messages = Json::parse(R"([{"role": "user", "content": "hi"}])");
  tell_tools(messages, Json::parse(kTools));
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0]["role"], "system");
  const std::string text = messages[0]["content"];
  EXPECT_NE(text.find(R"({"name":"f","parameters":{"type":"object")"), std::string::npos);
  EXPECT_NE(text.find("<tool_call>"), std::string::npos);

  messages = Json::parse(R"([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
    {"role": "tool", "content": "42", "tool_call_id": "1"}])");
  tell_tools(messages, Json::parse(kTools));
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[0]["content"].get<std::string>().find("Be kind.\n\n"), 0u);
  EXPECT_EQ(messages[2].dump(),
            R"({"role":"assistant","content":"<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\":1}}\n</tool_call>"})");
  EXPECT_EQ(messages[3].dump(), R"({"role":"user","content":"<tool_response>\n42\n</tool_response>"})");
  messages = Json::parse(R"([{"role": "user", "content": "hi"}])");
  tell_tools(messages, Json::array());
  EXPECT_EQ(messages.size(), 1u);
}

TEST(ServerTools, GrammarsOfCalls) {
  const std::string hermes = tool_grammar(ToolFormat::kHermes, Json::parse(kTools));
  EXPECT_NE(hermes.find("<tool_call>"), std::string::npos);
  EXPECT_NE(hermes.find("</tool_call>"), std::string::npos);
  EXPECT_NE(hermes.find("arguments"), std::string::npos);
  const std::string llama = tool_grammar(ToolFormat::kLlama, Json::parse(kTools));
  EXPECT_EQ(llama.find("tool_call"), std::string::npos);
  EXPECT_NE(llama.find("parameters"), std::string::npos);
  EXPECT_NE(tool_grammar(ToolFormat::kMistral, Json::parse(kTools)).find("[TOOL_CALLS] ["), std::string::npos);
  Json broken = Json::parse(kTools);
  broken[0]["function"]["parameters"] =
      Json::parse(R"({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}})");
  EXPECT_THROW(tool_grammar(ToolFormat::kHermes, broken), Error);
}

bool takes(const std::string& grammar, const std::string& text) {
  static const TestVocabulary kBytes;
  GrammarMatcher matcher(grammar, kBytes.trie);
  return matches(matcher, text);
}

// What a grammar forces is what the parser reads, in every form.
TEST(ServerTools, ForcedCallsAreRead) {
  const Json tools = Json::parse(kTools);
  const struct {
    ToolFormat format;
    const char* f;
    const char* g;
    std::vector<std::string> wrong;
  } kForms[] = {
      {ToolFormat::kHermes,
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 12}}\n</tool_call>",
       "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
       {"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"}},
      {ToolFormat::kLlama,
       "{\"name\": \"f\", \"parameters\": {\"a\": 12}}",
       "{\"name\": \"g\", \"parameters\": {}}",
       {"{\"name\": \"h\", \"parameters\": {}}"}},
      {ToolFormat::kMistral,
       "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 12}}]",
       "[TOOL_CALLS] [{\"name\": \"g\", \"arguments\": {}}]",
       {}},
      {ToolFormat::kMistralNamed,
       "[TOOL_CALLS]f[ARGS]{\"a\": 12}",
       "[TOOL_CALLS]g[ARGS]{}",
       {"[TOOL_CALLS] [{\"name\": \"g\", \"arguments\": {}}]", "[TOOL_CALLS]f[ARGS]{\"a\": \"b\"}",
        "[TOOL_CALLS]h[ARGS]{}"}},
      {ToolFormat::kMistralCallId,
       "[TOOL_CALLS]f[CALL_ID]abcABC123[ARGS]{\"a\": 12}",
       "[TOOL_CALLS]g[CALL_ID]000000000[ARGS]{}",
       {"[TOOL_CALLS]g[ARGS]{}"}},
      {ToolFormat::kQwenCoder,
       "<tool_call>\n<function=f>\n<parameter=a>\n12\n</parameter>\n</function>\n</tool_call>",
       "<tool_call>\n<function=g>\n</function>\n</tool_call>",
       {"<tool_call>\n<function=f>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>"}},
      {ToolFormat::kGlm,
       "<tool_call>f<arg_key>a</arg_key><arg_value>12</arg_value></tool_call>",
       "<tool_call>g</tool_call>",
       {"<tool_call>f</tool_call>"}},
      {ToolFormat::kMiniMax,
       "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">12</parameter>\n</invoke>\n</minimax:tool_call>",
       "<minimax:tool_call>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
       {}},
      {ToolFormat::kFunctionary, "<function=f>{\"a\": 12}</function>", "<function=g>{}</function>", {}},
      {ToolFormat::kNemotron,
       "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"a\": 12}}]</TOOLCALL>",
       "<TOOLCALL>[{\"name\": \"g\", \"arguments\": {}}]</TOOLCALL>",
       {}},
      {ToolFormat::kApriel,
       "<tool_calls>[{\"name\": \"f\", \"arguments\": {\"a\": 12}}]</tool_calls>",
       "<tool_calls>[{\"name\": \"g\", \"arguments\": {}}]</tool_calls>",
       {}}};
  for (const auto& form : kForms) {
    const std::string grammar = tool_grammar(form.format, tools);
    for (const char* text : {form.f, form.g}) {
      EXPECT_TRUE(takes(grammar, text)) << text << "\n" << grammar;
      ToolParser parser(form.format, {"f", "g"}, true, kTools);
      ToolParser::Output out = parser.add(text), rest = parser.finish();
      out.parts.insert(out.parts.end(), rest.parts.begin(), rest.parts.end());
      ASSERT_EQ(out.calls().size(), 1u) << text;
      EXPECT_EQ(out.content(), "") << text;
      EXPECT_EQ(out.calls()[0].arguments, text == form.f ? R"({"a":12})" : "{}") << text;
    }
    for (const std::string& text : form.wrong) EXPECT_FALSE(takes(grammar, text)) << text;
    EXPECT_FALSE(takes(grammar, ""));
    EXPECT_FALSE(takes(grammar, std::string(form.f) + form.g));
  }
}

TEST(ServerTools, GrammarsOfTextsWithoutQuotes) {
  const auto tool = [](const std::string& parameters) {
    return Json::array(
        {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", Json::parse(parameters)}}}}});
  };
  const auto call = [](const std::string& arguments) {
    return "<tool_call>\n<function=f>\n" + arguments + "</function>\n</tool_call>";
  };
  const auto argument = [](const std::string& key, const std::string& value) {
    return "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
  };
  const std::string grammar = tool_grammar(
      ToolFormat::kQwenCoder, tool(R"({"type": "object", "required": ["s"], "properties": {"s": {"type": "string"},
      "c": {"$ref": "#/$defs/C"}, "o": {"$ref": "#/$defs/O"}}, "$defs": {"C": {"enum": ["red", "a<b"]}, "O": {"type": "object", "properties": {"x": {"type": "integer"}},
      "required": ["x"]}}})"));
  for (const char* text : {"", "a", "x < y && z > 0", "<", "<</", "</p", "<</parameter", "</param</parameter\n>",
                           "</parameter", "é\n\n", "\n"})
    EXPECT_TRUE(takes(grammar, call(argument("s", text)))) << text;
  EXPECT_FALSE(takes(grammar, call(argument("s", "</parameter>"))));
  EXPECT_FALSE(takes(grammar, call(argument("s", "a<</parameter> b"))));
  EXPECT_TRUE(takes(grammar, call(argument("s", "") + argument("c", "a<b"))));
  EXPECT_FALSE(takes(grammar, call(argument("s", "") + argument("c", "\"red\""))));
  EXPECT_FALSE(takes(grammar, call(argument("c", "red"))));
  EXPECT_TRUE(takes(grammar, call(argument("s", "") + argument("o", "{\"x\": 1}"))));
  EXPECT_FALSE(takes(grammar, call(argument("s", "") + argument("o", "{\"x\": \"1\"}"))));
  for (const char* wrong :
       {R"({"type": "object", "properties": {"s": {"type": "string", "pattern": "a"}}})", R"({"type": "array"})",
        R"({"type": "object", "properties": {"s": {"$ref": "#/nowhere"}}})",
        R"({"type": "object", "properties": {"a>b": {"type": "string"}}})",
        R"({"type": "object", "properties": {"s": {"enum": ["</parameter>"]}}})", R"({"anyOf": [{"type": "object"}]})",
        R"({"type": "object", "properties": {"s": {"type": "string", "maxLength": 5}}})",
        R"({"type": "object", "properties": {"i": {"type": "integer", "minimum": "x"}}})"})
    EXPECT_THROW(tool_grammar(ToolFormat::kQwenCoder, tool(wrong)), Error) << wrong;
  // A reference leads somewhere in the parameters of its own tool, whatever the form.
  const std::string nested =
      R"({"type": "object", "required": ["o"], "properties": {"o": {"$ref": "#/$defs/O"}}, "$defs": {"O": {"type": "integer"}}})";
  EXPECT_TRUE(takes(tool_grammar(ToolFormat::kHermes, tool(nested)),
                    "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"o\": 5}}\n</tool_call>"));
}

}  // namespace
}  // namespace sx::server
