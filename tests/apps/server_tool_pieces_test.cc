// Calls in pieces: the name as soon as it is known, the arguments as they come, the same call in the end.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/tools.h"

namespace sx::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTools =
    R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties":
  {"s": {"type": "string"}, "i": {"type": "integer"}}}}}, {"type": "function", "function": {"name": "g", "parameters": {}}}])";

struct Told {
  std::string content;
  std::vector<ToolCall> calls;
  size_t pieces = 0;      // of arguments
  size_t told_after = 0;  // bytes of text after which the first call was told
};

Told listen(ToolFormat format, const std::string& text, size_t piece, bool parallel = true) {
  ToolParser parser(format, {"f", "g"}, parallel, kTools, true);
  Told told;
  size_t given = 0;
  const auto take = [&](const ToolParser::Output& out) {
    for (const AnswerPart& part : out.parts) {
      if (part.kind == AnswerPart::Kind::kContent) told.content += part.text;
      if (part.kind == AnswerPart::Kind::kCall) told.calls.push_back(part.call);
      if (part.kind == AnswerPart::Kind::kCall && told.told_after == 0) told.told_after = given;
      if (part.kind == AnswerPart::Kind::kArguments)
        told.calls.at(told.calls.size() - 1).arguments += part.text, ++told.pieces;
    }
    EXPECT_LE(out.taken, given);
  };
  for (; given < text.size();) {
    const std::string next = text.substr(given, piece);
    given += next.size();
    take(parser.add(next));
  }
  take(parser.finish());
  return told;
}

std::string spelt(const std::string& text) { return Json(text).dump(); }

// What a model may write in a text, whole characters, with what looks like marks in it.
const std::string kText = "line \"one\"\n\ttwo < three </para é 漢 \\ {[\n end";

struct Form {
  ToolFormat format;
  std::string before, after;  // of the arguments of f: JSON, or one text
  bool json = true;
};
const std::vector<Form> kForms = {
    {ToolFormat::kHermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": ", "}\n</tool_call>"},
    {ToolFormat::kLlama, "{\"name\": \"f\", \"parameters\": ", "}"},
    {ToolFormat::kMistral, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": ", "}]"},
    {ToolFormat::kMistralNamed, "[TOOL_CALLS]f[ARGS]", ""},
    {ToolFormat::kFunctionary, "<function=f>", "</function>"},
    {ToolFormat::kKimi, "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>",
     "<|tool_call_end|><|tool_calls_section_end|>"},
    {ToolFormat::kCohere,
     "<|START_ACTION|>[{\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": ", "}]<|END_ACTION|>"},
    {ToolFormat::kQwenCoder, "<tool_call>\n<function=f>\n<parameter=s>\n",
     "\n</parameter>\n<parameter=i>\n7\n</parameter>\n</function>\n</tool_call>", false},
    {ToolFormat::kGlm, "<tool_call>f<arg_key>s</arg_key><arg_value>",
     "</arg_value><arg_key>i</arg_key><arg_value>7</arg_value></tool_call>", false},
    {ToolFormat::kDeepSeek32,
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" string=\"true\">",
     "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"i\" string=\"false\">7</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     false},
};

std::string body(const Form& form) { return form.json ? "{\"s\": " + spelt(kText) + ",\n \"i\": 7}" : kText; }

TEST(ToolPieces, ComeToTheSameCall) {
  for (const Form& form : kForms)
    for (const size_t piece : {size_t(1), size_t(2), size_t(5), size_t(1000)}) {
      const std::string text =
          (form.format == ToolFormat::kLlama ? "" : "Well. ") + form.before + body(form) + form.after;
      const Told told = listen(form.format, text, piece);
      ASSERT_EQ(told.calls.size(), 1u) << text;
      EXPECT_EQ(told.calls[0].name, "f");
      EXPECT_FALSE(told.calls[0].id.empty());
      EXPECT_EQ(told.calls[0].arguments, Json({{"s", kText}, {"i", 7}}).dump()) << text;
      EXPECT_EQ(told.content, form.format == ToolFormat::kLlama ? "" : "Well.") << text;
      if (piece > 5) continue;
      EXPECT_GT(told.pieces, 3u) << text;
      EXPECT_LT(told.told_after, text.size() - kText.size() / 2) << text;  // long before the end
    }
}

TEST(ToolPieces, SeveralCalls) {
  const std::string one = "<tool_call>{\"name\": \"f\", \"arguments\": {\"i\": 1}}</tool_call>",
                    other = "<tool_call>{\"name\": \"g\"}</tool_call>";
  for (const size_t piece : {size_t(1), size_t(7), size_t(1000)}) {
    const Told both = listen(ToolFormat::kHermes, one + other + one, piece);
    ASSERT_EQ(both.calls.size(), 3u);
    EXPECT_EQ(both.calls[1].name + both.calls[1].arguments + both.calls[2].arguments, "g{}{\"i\":1}");
    EXPECT_EQ(listen(ToolFormat::kHermes, one + other + one, piece, false).calls.size(), 1u);
    const Told list = listen(
        ToolFormat::kMistral,
        "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"i\": 1}}, {\"name\": \"g\", \"arguments\": {\"k\": [1]}}]",
        piece);
    ASSERT_EQ(list.calls.size(), 2u);
    EXPECT_EQ(list.calls[1].arguments, "{\"k\":[1]}");
    const Told block = listen(
        ToolFormat::kKimi,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"i\": 1}<|tool_call_end|>"
        "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        piece);
    ASSERT_EQ(block.calls.size(), 2u);
    EXPECT_EQ(block.calls[0].id + block.calls[0].arguments + block.calls[1].id + block.calls[1].arguments,
              "functions.f:0{\"i\":1}functions.g:1{}");
  }
}

TEST(ToolPieces, BrokenCalls) {
  for (const size_t piece : {size_t(1), size_t(6)}) {
    // Cut off: what there is.
    EXPECT_EQ(listen(ToolFormat::kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"ab", piece)
                  .calls.at(0)
                  .arguments,
              "{\"s\":\"ab");
    const Told coder =
        listen(ToolFormat::kQwenCoder, "<tool_call>\n<function=f>\n<parameter=s>\nsome text that is cut off he", piece);
    EXPECT_EQ(coder.calls.at(0).arguments.substr(0, 15), "{\"s\":\"some text");
    EXPECT_EQ(coder.content, "");
    // Not JSON: it ends where its brackets do, and what follows is told.
    const Told odd =
        listen(ToolFormat::kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"i\": 1,}}</tool_call> So.", piece);
    EXPECT_EQ(odd.calls.at(0).arguments, "{\"i\":1,}");
    EXPECT_EQ(odd.content, " So.");
    // A tool that is not there, or no name before the arguments: nothing is told before it is known.
    EXPECT_EQ(listen(ToolFormat::kHermes, "<tool_call>{\"name\": \"h\", \"arguments\": {\"i\": 1}}</tool_call>", piece)
                  .calls.size(),
              0u);
    EXPECT_EQ(listen(ToolFormat::kHermes, "<tool_call>{\"arguments\": {\"i\": 1}, \"name\": \"f\"}</tool_call>", piece)
                  .calls.at(0)
                  .arguments,
              "{\"i\":1}");
  }
}

}  // namespace
}  // namespace sx::server
