// Tool calls: found in texts that come in any pieces, never half, never broken; the grammar that forces one.
#include "server/tools.h"

#include <gtest/gtest.h>
#include <specextend/specextend.h>

#include <nlohmann/json.hpp>

namespace sx::server {
namespace {

using Json = nlohmann::ordered_json;

struct Heard {
  std::string content;
  std::vector<ToolCall> calls;
};

Heard hear(ToolFormat format, const std::string& text, size_t piece, bool parallel = true) {
  ToolParser parser(format, {"f", "get_it"}, parallel);
  Heard heard;
  const auto take = [&](ToolParser::Output out) {
    heard.content += out.content;
    for (ToolCall& call : out.calls) heard.calls.push_back(std::move(call));
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
  EXPECT_TRUE(parser.finish().content.empty());
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
</tool_call>)"), R"(|f({"a":[1,"x"]}))");
  EXPECT_EQ(hermes(R"(Let me see.

<tool_call>{"name": "f", "arguments": {}}</tool_call>
<tool_call>{"name": "get_it"}</tool_call>
)"), R"(Let me see.|f({})|get_it({}))");
  // As SmolLM2 writes them.
  EXPECT_EQ(hermes(R"(<tool_call>[{"name": "f", "arguments": {"q": "é"}}, {"name": "get_it", "arguments": {}}]</tool_call>)"),
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
  for (const char* text : {"plain text", "a < b <tool", "<tool_call>", "<tool_call>{\"name\": \"f\", \"argum", "<tool_call>hello</tool_call>",
                           R"(<tool_call>{"name": "unknown", "arguments": {}}</tool_call>)", R"(<tool_call>{"name": "f", "arguments": 5}</tool_call>)",
                           R"(<tool_call>{"name": "f", "arguments": "no"}</tool_call>)", R"(<tool_call>{"name": 5}</tool_call>)",
                           R"(<tool_call>{'name': 'f'}</tool_call>)", R"(<tool_call>{"name": "f"} and</tool_call>)", "<tool_call>[]</tool_call>",
                           R"(<tool_call>[{"name": "f"}, {"name": "unknown"}]</tool_call>)", "<tool_call>{]</tool_call>", "spaces at the end \n ",
                           "  \n", "<<tool_call", "x <tool_call> y <tool_call> z"})
    EXPECT_EQ(hermes(text), text);
  const std::string deep = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": " + std::string(2000, '[') + std::string(2000, ']') + "}}</tool_call>";
  EXPECT_EQ(hermes(deep), deep);
  // A call after something that only looked like one.
  EXPECT_EQ(hermes(R"(<tool_call>oh <tool_call>{"name": "f"}</tool_call>)"), "<tool_call>oh|f({})");
}

TEST(ServerTools, TextIsHeldNoLongerThanNeeded) {
  ToolParser parser(ToolFormat::kHermes, {"f"}, true);
  EXPECT_EQ(parser.add("Hello <to").content, "Hello");
  EXPECT_EQ(parser.add("ol box").content, " <tool box");
  EXPECT_EQ(parser.add(" and").content, " and");
  EXPECT_EQ(parser.add("\n<tool_call>{\"name\": \"f\"").content, "");
  const ToolParser::Output out = parser.add("}</tool_call>");
  ASSERT_EQ(out.calls.size(), 1u);
  EXPECT_EQ(out.calls[0].id.substr(0, 5), "call_");
  EXPECT_EQ(out.calls[0].id.size(), 29u);
  ToolParser other(ToolFormat::kLlama, {"f"}, true);
  EXPECT_EQ(other.add("He").content, "He");  // decided at once
  EXPECT_EQ(other.add("{\"name\": \"f\"}").content, "{\"name\": \"f\"}");
}

TEST(ServerTools, LlamaCalls) {
  EXPECT_EQ(llama(R"({"name": "f", "parameters": {"a": 1}})"), R"(|f({"a":1}))");
  EXPECT_EQ(llama(R"(
 {"type": "function", "name": "f", "parameters": {"a": "}"}}; {"name": "get_it", "parameters": {}}
)"), R"(|f({"a":"}"})|get_it({}))");
  EXPECT_EQ(llama(R"(<|python_tag|>{"name": "f", "parameters": {}})"), "|f({})");
  EXPECT_EQ(llama(R"({"name": "f", "parameters": {}} So it is.)"), " So it is.|f({})");
  for (const char* text : {"text", "", "{\"a\": 1} and {\"name\": \"f\"}", "{\"name\": \"f\"", "<|python_tag|>print()", "<|py", "[f(a=1)]",
                           "See {\"name\": \"f\"}", " \n", "{\"name\": \"unknown\", \"parameters\": {}}"})
    EXPECT_EQ(llama(text), text);
}

TEST(ServerTools, MistralCalls) {
  EXPECT_EQ(mistral(R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "get_it", "arguments": {}}])"), R"(|f({"a":1})|get_it({}))");
  EXPECT_EQ(mistral(R"(Well [TOOL_CALLS][{"name": "f", "arguments": {}}])"), "Well|f({})");
  for (const char* text : {"[TOOL", "[1, 2]", "[TOOL_CALLS] none", "[TOOL_CALLS] [{\"name\": \"f\""}) EXPECT_EQ(mistral(text), text);
  EXPECT_EQ(hear(ToolFormat::kMistral, R"([TOOL_CALLS] [{"name": "f"}])", 5).calls.at(0).id.size(), 9u);  // as its templates want it
}

TEST(ServerTools, OnlyTheFirstIfNotParallel) {
  const char* text = R"(<tool_call>[{"name": "f"}, {"name": "get_it"}]</tool_call><tool_call>{"name": "f"}</tool_call>)";
  EXPECT_EQ(told(ToolFormat::kHermes, text, false), "|f({})");
  EXPECT_EQ(told(ToolFormat::kHermes, text, true), "|f({})|get_it({})|f({})");
}

TEST(ServerTools, StylesByTemplate) {
  const auto is = [](const char* source, ToolFormat format, bool shown) {
    const ToolStyle style = tool_style(source);
    return style.format == format && style.in_template == shown;
  };
  EXPECT_TRUE(is("{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}", ToolFormat::kHermes, false));
  EXPECT_TRUE(is("", ToolFormat::kHermes, false));
  EXPECT_TRUE(is("{% if tools %}<tools>{{ tools }}</tools> <tool_call>{% endif %}", ToolFormat::kHermes, true));
  EXPECT_TRUE(is("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", ToolFormat::kMistral, true));
  EXPECT_TRUE(is("{% if tools %}<|start_header_id|>{\"name\": function name, \"parameters\": dict}{% endif %}", ToolFormat::kLlama, true));
  EXPECT_TRUE(is("<|start_header_id|>{{ m.role }}<|end_header_id|>", ToolFormat::kHermes, false));
}

const char* kTools = R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}},
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
  EXPECT_EQ(messages[2].dump(), R"({"role":"assistant","content":"<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\":1}}\n</tool_call>"})");
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
  broken[0]["function"]["parameters"] = Json::parse(R"({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}})");
  EXPECT_THROW(tool_grammar(ToolFormat::kHermes, broken), Error);
}

}  // namespace
}  // namespace sx::server
