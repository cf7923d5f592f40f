// Chats as requests: messages, tools, choices of tools.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "server/request.h"
#include "server_tokenizer.h"
#include "server_refusal.h"

namespace sx::server {
namespace {

using Json = nlohmann::ordered_json;

Limits limits(ToolFormat format = ToolFormat::kHermes, bool in_template = true) {
  Limits l;
  l.vocab = 100, l.messages = 5, l.tools = 2, l.schema_bytes = 400;
  l.tool_style = {format, in_template};
  return l;
}

constexpr const char* kHi = R"("messages": [{"role": "user", "content": "hi"}])";
constexpr const char* kTools =
    R"("tools": [{"type": "function", "function": {"name": "f", "description": "d", "strict": true,
  "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}, {"type": "function", "function": {"name": "g"}}])";

CompletionRequest chat(const std::string& fields, const Limits& l = limits()) {
  return parse_chat("{" + std::string(kHi) + (fields.empty() ? "" : ", " + fields) + "}", l);
}
std::string refused(const std::string& fields) {
  return culprit([&] { chat(fields); });
}
std::string messages(const std::string& list) { return parse_chat(R"({"messages": )" + list + "}", limits()).messages; }

TEST(ServerChatRequest, MessagesAreChecked) {
  for (const char* list :
       {"null",
        "[]",
        "{}",
        "5",
        "[5]",
        "[[]]",
        R"([{}])",
        R"([{"role": "user"}])",
        R"([{"content": "a"}])",
        R"([{"role": "user", "content": null}])",
        R"([{"role": "assistant", "content": null}])",
        R"([{"role": 1, "content": "a"}])",
        R"([{"role": "user", "content": 1}])",
        R"([{"role": "king", "content": "a"}])",
        R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])",
        R"([{"role": "user", "content": ["a"]}])",
        R"([{"role": "user", "content": [{"type": "text"}]}])",
        R"([{"role": "user", "content": [{"type": "text", "text": 5}]}])",
        R"([{"role": "user", "content": [{"text": "a"}]}])",
        R"([{"role": "assistant", "content": "a", "tool_calls": [{}]}])",
        R"([{"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}])",
        R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}])",
        R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}])",
        R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}])",
        R"([{"role": "assistant", "tool_calls": [{"id": 5, "function": {"name": "f"}}]}])",
        R"([{"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f"}}]}])",
        R"([{"role": "tool", "content": "a", "tool_call_id": 5}])",
        R"([{"role": "tool"}])",
        R"([{"role": "user", "content": "1"}, {"role": "user", "content": "2"}, {"role": "user", "content": "3"},
                               {"role": "user", "content": "4"}, {"role": "user", "content": "5"}, {"role": "user", "content": "6"}])"})
    EXPECT_EQ(culprit([&] { messages(list); }), "messages") << list;
}

TEST(ServerChatRequest, MessagesBecomeWhatTemplatesTake) {
  EXPECT_EQ(messages(R"([{"role": "developer", "content": "s"}, {"role": "user", "content":
      [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "x"}])"),
            R"([{"role":"system","content":"s"},{"role":"user","content":"ab"}])");
  EXPECT_EQ(
      messages(R"([{"role": "assistant", "content": null, "tool_calls":
      [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}, {"function": {"name": "g", "arguments": ""}}]},
      {"role": "tool", "content": "42", "tool_call_id": "1", "name": "f"}])"),
      R"([{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"a":1}}},)"
      R"({"id":"","type":"function","function":{"name":"g","arguments":{}}}]},{"role":"tool","content":"42","tool_call_id":"1","name":"f"}])");
  // What the model thought goes to the template, under the names that servers and templates have for it.
  EXPECT_EQ(messages(R"([{"role": "assistant", "content": "a", "reasoning_content": "hm"}])"),
            R"([{"role":"assistant","content":"a","reasoning_content":"hm"}])");
  EXPECT_EQ(messages(R"([{"role": "assistant", "content": "a", "reasoning": "hm", "thinking": null}])"),
            R"([{"role":"assistant","content":"a","reasoning":"hm","reasoning_content":"hm"}])");
  EXPECT_EQ(messages(R"([{"role": "user", "content": "a", "reasoning_content": "hm"}])"),
            R"([{"role":"user","content":"a"}])");
  EXPECT_EQ(culprit([&] { messages(R"([{"role": "assistant", "content": "a", "reasoning_content": 5}])"); }),
            "messages");
  EXPECT_EQ(messages(R"([{"role": "assistant", "content": "a", "tool_calls": []}])"),
            R"([{"role":"assistant","content":"a"}])");
  EXPECT_EQ(messages(R"([{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}])"),
            R"([{"role":"assistant","content":"no"}])");
}

// Templates that print the arguments as they are get the client's own text.
TEST(ServerChatRequest, ArgumentsAsTextWhereTheTemplateWantsThem) {
  Limits l = limits();
  l.tool_style.text_arguments = true;
  const auto arguments = [&](const std::string& given) {
    const std::string body =
        R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": )" +
        given + "}}]}]}";
    return Json::parse(parse_chat(body, l).messages)[0]["tool_calls"][0]["function"]["arguments"];
  };
  EXPECT_EQ(arguments(R"("{\"a\":  1}")"), R"({"a":  1})");
  EXPECT_EQ(arguments(R"({"a": 1})"), R"({"a":1})");
  EXPECT_EQ(arguments(R"("")"), "{}");
  EXPECT_EQ(culprit([&] { arguments(R"("[1]")"); }), "messages");
  l.tool_style.in_template = false;  // then they are told in other words
  EXPECT_EQ(
      Json::parse(
          parse_chat(
              R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}]})",
              l)
              .messages)[0]["content"],
      "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\":1}}\n</tool_call>");
}

// Templates that show calls but no tools get the calls; the tools are told in the form of the calls.
TEST(ServerChatRequest, CallsAreLeftToATemplateThatShowsThem) {
  Limits l = limits(ToolFormat::kDeepSeek31, false);
  l.tool_style.shows_calls = l.tool_style.null_content = l.tool_style.text_arguments = true;
  const std::string body =
      R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "1",
      "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "42"}],
      "tools": [{"type": "function", "function": {"name": "f"}}]})";
  const CompletionRequest request = parse_chat(body, l);
  const Json messages = Json::parse(request.messages);
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_NE(messages[0]["content"].get<std::string>().find("<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>"),
            std::string::npos);
  EXPECT_TRUE(messages[2]["content"].is_null());
  EXPECT_EQ(messages[2]["tool_calls"][0]["function"]["arguments"], R"({"a": 1})");
  EXPECT_EQ(messages[3]["role"], "tool");
  EXPECT_TRUE(request.tools.empty());
  EXPECT_TRUE(request.options.show_special);
  EXPECT_EQ(request.tool_format, ToolFormat::kDeepSeek31);
}

TEST(ServerChatRequest, FieldsAreTaken) {
  const CompletionRequest plain = chat("");
  EXPECT_EQ(plain.api, Api::kChat);
  EXPECT_EQ(plain.options.max_tokens, -1);
  EXPECT_EQ(plain.options.sampling.temperature, 1);
  EXPECT_EQ(plain.choices(), 1u);
  EXPECT_TRUE(plain.tools.empty() && plain.tool_names.empty() && plain.template_variables.empty() &&
              plain.add_generation_prompt);
  const CompletionRequest r = chat(
      R"("n": 4, "logprobs": true, "top_logprobs": 5, "chat_template_kwargs": {"a": 1}, "add_generation_prompt": false,
      "user": "x", "metadata": {}, "store": true, "service_tier": "auto", "anything": [1])");
  EXPECT_EQ(r.choices(), 4u);
  EXPECT_EQ(r.logprobs, 5);
  EXPECT_TRUE(r.options.token_logits);
  EXPECT_EQ(r.template_variables, R"({"a":1})");
  EXPECT_FALSE(r.add_generation_prompt);
  EXPECT_EQ(chat(R"("logprobs": true)").logprobs, 0);
  EXPECT_EQ(chat(R"("logprobs": false, "top_logprobs": 0)").logprobs, -1);
  EXPECT_EQ(chat(R"("response_format": {"type": "json_object"})").options.grammar,
            json_schema_to_gbnf(R"({"type":"object"})"));
  EXPECT_EQ(chat(R"("function_call": "none", "functions": [])").api, Api::kChat);
}

TEST(ServerChatRequest, WrongFieldsAreNamed) {
  const std::string long_text(400, 'x');
  const std::pair<std::string, const char*> cases[] = {
      {R"("logprobs": 1)", "logprobs"},
      {R"("top_logprobs": 1)", "top_logprobs"},
      {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs"},
      {R"("functions": [{}])", "functions"},
      {R"("function_call": {"name": "f"})", "function_call"},
      {R"("function_call": "auto")", "function_call"},
      {R"("echo": 1)", "echo"},
      {R"("chat_template_kwargs": 5)", "chat_template_kwargs"},
      {R"("continue_final_message": true)", "continue_final_message"},
      {R"("chat_template_kwargs": {"a": ")" + long_text + "\"}", "chat_template_kwargs"},
      {R"("tools": 5)", "tools"},
      {R"("tools": [5])", "tools"},
      {R"("tools": [{"type": "function"}])", "tools"},
      {R"("tools": [{"function": {"name": "f"}}])", "tools"},
      {R"("tools": [{"type": "function", "function": {"name": 5}}])", "tools"},
      {R"("tools": [{"type": "function", "function": {"name": ""}}])", "tools"},
      {R"("tools": [{"type": "function", "function": {"name": "a b"}}])", "tools"},
      {R"("tools": [{"type": "function", "function": {"name": ")" + std::string(65, 'x') + "\"}}]", "tools"},
      {R"("tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}])", "tools"},
      {R"("tools": [{"type": "function", "function": {"name": "f", "description": 5}}])", "tools"},
      {R"("tools": [{"type": "function", "function": {"name": "f", "description": ")" + long_text + "\"}}]", "tools"},
      {R"("tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "f"}}])",
       "tools"},
      {R"("tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}},
          {"type": "function", "function": {"name": "h"}}])",
       "tools"},
      {R"("tool_choice": "required")", "tool_choice"},
      {std::string(kTools) + R"(, "tool_choice": "some")", "tool_choice"},
      {std::string(kTools) + R"(, "tool_choice": {"type": "function", "function": {"name": "h"}})", "tool_choice"},
      {std::string(kTools) + R"(, "tool_choice": {"type": "function"})", "tool_choice"},
      {std::string(kTools) + R"(, "tool_choice": {"type": "allowed_tools"})", "tool_choice"},
      {std::string(kTools) + R"(, "parallel_tool_calls": 1)", "parallel_tool_calls"},
      {R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "nonsense"}}}], "tool_choice": "required")",
       "tools"},
  };
  for (const auto& [fields, name] : cases) EXPECT_EQ(refused(fields), name) << fields;
}

TEST(ServerChatRequest, ToolsAreShown) {
  const CompletionRequest r = chat(kTools);
  EXPECT_EQ(
      r.tools,
      R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":)"
      R"({"a":{"type":"integer"}},"required":["a"]}}},{"type":"function","function":{"name":"g","parameters":{"type":"object","properties":{}}}}])");
  // In the client's order, with whatever else it says of a function.
  EXPECT_EQ(
      chat(
          R"("tools": [{"type": "function", "function": {"description": "d", "name": "f", "parameters": {"type": "object"}, "return": {"type": "string"}}}])")
          .tools,
      R"([{"type":"function","function":{"description":"d","name":"f","parameters":{"type":"object"},"return":{"type":"string"}}}])");
  EXPECT_EQ(r.messages, R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(r.tool_names, (std::vector<std::string>{"f", "g"}));
  EXPECT_EQ(r.options.grammar, "");
  EXPECT_TRUE(r.parallel_tool_calls);
  EXPECT_FALSE(r.options.show_special);
  EXPECT_FALSE(chat(std::string(kTools) + R"(, "parallel_tool_calls": false)").parallel_tool_calls);
  EXPECT_TRUE(chat(kTools, limits(ToolFormat::kMistral)).options.show_special);
  EXPECT_EQ(chat(kTools, limits(ToolFormat::kMistral)).tool_format, ToolFormat::kMistral);
  // A template that does not know of tools.
  const CompletionRequest told = chat(kTools, limits(ToolFormat::kHermes, false));
  EXPECT_EQ(told.tools, "");
  const Json messages = Json::parse(told.messages);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_NE(messages[0]["content"].get<std::string>().find("\"name\":\"g\""), std::string::npos);
  EXPECT_EQ(told.tool_names.size(), 2u);
}

TEST(ServerChatRequest, ToolChoices) {
  const auto choose = [](const std::string& choice) {
    return chat(std::string(kTools) + R"(, "tool_choice": )" + choice);
  };
  const CompletionRequest none = choose("\"none\"");
  EXPECT_TRUE(none.tools.empty() && none.tool_names.empty() && none.options.grammar.empty());
  EXPECT_EQ(choose("\"auto\"").options.grammar, "");
  EXPECT_EQ(chat(R"("tool_choice": "none")").tool_names.size(), 0u);
  EXPECT_NE(chat(std::string(kTools) + R"(, "tool_choice": "none", "response_format": {"type": "json_object"})")
                .options.grammar,
            "");
  const Json tools = Json::parse(choose("\"auto\"").tools);
  const CompletionRequest required = choose("\"required\"");
  EXPECT_EQ(required.options.grammar, tool_grammar(ToolFormat::kHermes, tools));
  EXPECT_EQ(required.tool_names.size(), 2u);
  const CompletionRequest named = choose(R"({"type": "function", "function": {"name": "g"}})");
  EXPECT_EQ(named.options.grammar, tool_grammar(ToolFormat::kHermes, Json::array({tools[1]})));
  EXPECT_NE(named.options.grammar, required.options.grammar);
  // With a grammar the answer is a call or what the grammar binds; a call that must come leaves nothing to bind.
  const std::string bound = std::string(kTools) + R"(, "grammar": "root ::= \"x\"")";
  EXPECT_EQ(chat(bound).options.grammar, either_grammar(required.options.grammar, "root ::= \"x\""));
  EXPECT_EQ(chat(bound + R"(, "tool_choice": "required")").options.grammar, required.options.grammar);
  EXPECT_EQ(Json::parse(named.tools), tools);
}

TEST(ServerChatRequest, PromptsOfTemplates) {
  const FakeTokenizer words({"a"});
  const CompletionRequest r = chat(R"("chat_template_kwargs": {"k": true})");
  EXPECT_EQ(chat_prompt(words, r), R"([{"role":"user","content":"hi"}]|go||{"k":true})");
  EXPECT_EQ(prompt_tokens(words, r).at(0).size(), chat_prompt(words, r).size());  // nothing in front
  const CompletionRequest t =
      parse_template("{" + std::string(kHi) + "," + kTools + R"(, "add_generation_prompt": false})", limits());
  EXPECT_EQ(chat_prompt(words, t), R"([{"role":"user","content":"hi"}]||)" + t.tools + "|");
  EXPECT_EQ(culprit([&] {
              chat_prompt(words, parse_chat(R"({"messages": [{"role": "user", "content": "refuse me"}]})", limits()));
            }),
            "messages");
  EXPECT_EQ(culprit([&] { parse_template("{}", limits()); }), "messages");
}

}  // namespace
}  // namespace sx::server
