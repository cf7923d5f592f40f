// Chat templates: the variables they see, the built-in fallback, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/chat.h"

namespace {

using Json = nlohmann::ordered_json;
using sx::ChatTemplate;

const Json kMessages = Json::parse(R"([{"role": "system", "content": "Be brief."},
                                       {"role": "user", "content": "Hi"}])");

TEST(Chat, BuiltInTemplateIsChatML) {
  const ChatTemplate chat("");
  EXPECT_EQ(chat.render(kMessages),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  const Json parts = Json::parse(R"([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])");
  EXPECT_EQ(chat.render(Json::array({Json{{"role", "user"}, {"content", parts}}}), nullptr, false),
            "<|im_start|>user\nab<|im_end|>\n");
  EXPECT_THROW(chat.render(Json::parse(R"([{"role": "user", "content": [{"type": "image"}]}])")), sx::Error);
}

TEST(Chat, TemplatesSeeTheStandardVariables) {
  const ChatTemplate chat(
      "{{ bos_token }}{{ messages|length }}{{ tools is none }}{{ documents is none }}"
      "{{ add_generation_prompt }}{{ enable_thinking is defined }}{{ eos_token }}",
      {"<s>", "</s>"});
  EXPECT_EQ(chat.render(kMessages), "<s>2TrueTrueTrueFalse</s>");
  EXPECT_EQ(chat.render(kMessages, Json::array(), false, {{"enable_thinking", false}, {"eos_token", "E"}}),
            "<s>2FalseTrueFalseTrueE");
}

TEST(Chat, ARefusalIsAnErrorWithTheTemplatesWords) {
  const ChatTemplate chat("x\n{{ raise_exception('only one turn') }}", {}, "model.gguf");
  try {
    chat.render(kMessages);
    FAIL();
  } catch (const sx::Error& error) {
    EXPECT_STREQ(error.what(), "model.gguf:2: the template rejects this input: only one turn");
  }
}

TEST(Chat, WrongInputIsNamed) {
  EXPECT_THROW(ChatTemplate("{% if %}"), sx::Error);
  const ChatTemplate chat("");
  EXPECT_THROW(chat.render(Json::object()), sx::Error);
  EXPECT_THROW(chat.render(Json::parse(R"(["hi"])")), sx::Error);
  EXPECT_THROW(chat.render(Json::parse(R"([{"content": "x"}])")), sx::Error);
  EXPECT_THROW(chat.render(kMessages, Json("tools")), sx::Error);
  EXPECT_THROW(chat.render(kMessages, nullptr, true, Json::array()), sx::Error);
}

TEST(Chat, ToolsKeepTheOrderOfTheirKeys) {
  const ChatTemplate chat("{{ tools|tojson }}");
  const std::string tools = R"([{"type": "function", "function": {"name": "f", "a": 1, "Z": null}}])";
  EXPECT_EQ(chat.render(kMessages, Json::parse(tools)), tools);
}

}  // namespace
