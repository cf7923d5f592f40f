// The table of the forms in which models write tool calls.
#include <fmt/format.h>

#include <algorithm>

#include "server/tool_syntax.h"

namespace sx::server {

namespace {

using Body = CallSyntax::Body;
using Notation = CallSyntax::Notation;
using Kind = CallSyntax::Kind;
using Id = CallSyntax::Id;

const std::vector<CallSyntax> kSyntaxes = {
    {.format = ToolFormat::kMistralCallId, .body = Body::kNamed, .signs = {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"},
     .each = "[TOOL_CALLS]", .name_end = "[ARGS]", .id_use = Id::kGiven, .id = "[CALL_ID]", .id_form = "[a-zA-Z0-9]{9}"},
    {.format = ToolFormat::kMistralNamed, .body = Body::kNamed, .signs = {"[TOOL_CALLS]", "[ARGS]"},
     .each = "[TOOL_CALLS]", .name_end = "[ARGS]", .id_use = Id::kGiven, .id = "[CALL_ID]"},
    {.format = ToolFormat::kMistral, .body = Body::kJson, .signs = {"[TOOL_CALLS]"}, .open = "[TOOL_CALLS] ", .list_begin = "[", .list_end = "]"},
    {.format = ToolFormat::kMiniMax, .body = Body::kParameters, .signs = {"<minimax:tool_call>"},
     .open = "<minimax:tool_call>\n", .close = "\n</minimax:tool_call>", .each = "<invoke name=\"", .name_end = "\">\n",
     .each_end = "</invoke>", .key = "<parameter name=\"", .key_end = "\">", .value_end = "</parameter>\n"},
    {.format = ToolFormat::kQwenCoder, .body = Body::kParameters, .signs = {"<function=", "<parameter="},
     .open = "<tool_call>\n", .close = "\n</tool_call>", .each = "<function=", .name_end = ">\n", .each_end = "</function>",
     .key = "<parameter=", .key_end = ">\n", .value_end = "\n</parameter>\n", .breaks = true, .control = false},
    {.format = ToolFormat::kGlm, .body = Body::kParameters, .signs = {"<tool_call>", "<arg_key>"},
     .open = "<tool_call>", .close = "</tool_call>", .key = "<arg_key>", .key_end = "</arg_key>", .value_begin = "<arg_value>",
     .value_end = "</arg_value>"},
    {.format = ToolFormat::kFunctionary, .body = Body::kNamed, .signs = {"<function=", "</function>"},
     .each = "<function=", .name_end = ">", .each_end = "</function>"},
    {.format = ToolFormat::kKimi, .body = Body::kNamed, .signs = {"<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"},
     .open = "<|tool_calls_section_begin|>", .close = "<|tool_calls_section_end|>", .each = "<|tool_call_begin|>",
     .name_begin = "functions.", .name_end = "<|tool_call_argument_begin|>", .each_end = "<|tool_call_end|>",
     .id_use = Id::kWithName, .id = ":", .id_form = "[0-9]{1,4}"},
    {.format = ToolFormat::kKimiTags, .body = Body::kParameters, .signs = {"<|open|>call tool=\""},
     .open = "<|open|>tools<|sep|>", .close = "<|close|>tools<|sep|>", .each = "<|open|>call tool=\"", .name_end = "\"<|sep|>",
     .each_end = "<|close|>call<|sep|>", .key = "<|open|>argument key=\"", .key_end = "\" type=\"", .value_begin = "\"<|sep|>",
     .value_end = "<|close|>argument<|sep|>", .kind = Kind::kType, .id_use = Id::kIgnored, .id = "\" index=\"", .id_form = "\"1\"",
     .hidden = {"<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>", "<|close|>response<|sep|>",
                "<|close|>message<|sep|>", "<|end_of_msg|>"}},
    {.format = ToolFormat::kDeepSeek, .body = Body::kNamed, .signs = {"<｜tool▁calls▁begin｜>", "```json"},
     .open = "<｜tool▁calls▁begin｜>", .close = "<｜tool▁calls▁end｜>", .each = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     .name_end = "\n```json\n", .each_end = "\n```<｜tool▁call▁end｜>"},
    {.format = ToolFormat::kDeepSeek31, .body = Body::kNamed, .signs = {"<｜tool▁calls▁begin｜>"},
     .open = "<｜tool▁calls▁begin｜>", .close = "<｜tool▁calls▁end｜>", .each = "<｜tool▁call▁begin｜>", .name_end = "<｜tool▁sep｜>",
     .each_end = "<｜tool▁call▁end｜>"},
    {.format = ToolFormat::kDeepSeek32, .body = Body::kParameters, .signs = {"｜DSML｜", "function_calls>"},
     .open = "<｜DSML｜function_calls>\n", .close = "</｜DSML｜function_calls>", .each = "<｜DSML｜invoke name=\"", .name_end = "\">\n",
     .each_end = "</｜DSML｜invoke>\n", .key = "<｜DSML｜parameter name=\"", .key_end = "\" string=\"", .value_begin = "\">",
     .value_end = "</｜DSML｜parameter>\n", .kind = Kind::kIsText},
    {.format = ToolFormat::kDeepSeek4, .body = Body::kParameters, .signs = {"｜DSML｜", "tool_calls>"},
     .open = "<｜DSML｜tool_calls>\n", .close = "</｜DSML｜tool_calls>", .each = "<｜DSML｜invoke name=\"", .name_end = "\">\n",
     .each_end = "</｜DSML｜invoke>\n", .key = "<｜DSML｜parameter name=\"", .key_end = "\" string=\"", .value_begin = "\">",
     .value_end = "</｜DSML｜parameter>\n", .kind = Kind::kIsText},
    // The end of the call is a token that ends the answer.
    {.format = ToolFormat::kHarmony, .body = Body::kNamed, .signs = {"<|channel|>commentary", "functions."},
     .open = "<|channel|>commentary ", .each = "to=functions.", .name_end = "<|message|>", .filler = " <|constrain|>json",
     .hidden = {"<|channel|>analysis", "<|channel|>final", "<|channel|>commentary", "<|message|>", "<|start|>assistant",
                "<|constrain|>json", "<|end|>", "<|call|>", "<|return|>"}},
    {.format = ToolFormat::kGemma, .body = Body::kNamed, .signs = {"<|tool_call>call:"},
     .each = "<|tool_call>call:", .each_end = "<tool_call|>", .notation = Notation::kGemma,
     .hidden = {"<|channel>thought", "<channel|>", "<|tool_response>"}},
    {.format = ToolFormat::kLfm, .body = Body::kNamed, .signs = {"<|tool_call_start|>"},
     .open = "<|tool_call_start|>[", .close = "]<|tool_call_end|>", .separator = ", ", .notation = Notation::kPython},
    {.format = ToolFormat::kCohere, .body = Body::kJson, .signs = {"<|START_ACTION|>"},
     .open = "<|START_ACTION|>", .close = "<|END_ACTION|>", .list_begin = "[\n    ",
     .call = R"({"tool_call_id": "0", "tool_name": ")", .call_arguments = R"(", "parameters": )", .list_end = "\n]",
     .hidden = {"<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"}},
    {.format = ToolFormat::kApertus, .body = Body::kJson, .signs = {"<|tools_prefix|>"},
     .open = "<|tools_prefix|>", .close = "<|tools_suffix|>", .list_begin = "[", .call = R"({")", .call_arguments = R"(": )",
     .list_end = "]", .keyed = true, .hidden = {"<|inner_prefix|>", "<|inner_suffix|>"}},
    {.format = ToolFormat::kSolar, .body = Body::kNamed, .signs = {"<|tool_call:begin|>", "<|tool_call:args|>"},
     .open = "<|tool_calls|>", .each = "<|tool_call:begin|>", .name_end = "<|tool_call:args|>", .each_end = "<|tool_call:end|>",
     .id_use = Id::kGiven, .id = "<|tool_call:name|>", .id_first = true, .id_form = "[a-z0-9]{10}",
     .hidden = {"<|think|>", "<|content|>", "<|begin|>assistant", "<|end|>", "<|calls|>"}},
    {.format = ToolFormat::kGigaChat, .body = Body::kJson, .signs = {"<|function_call|>"}, .open = "<|function_call|>",
     .hidden = {"<|message_sep|>"}},
    {.format = ToolFormat::kNemotron, .body = Body::kJson, .signs = {"<TOOLCALL>"}, .open = "<TOOLCALL>", .close = "</TOOLCALL>",
     .list_begin = "[", .list_end = "]"},
    {.format = ToolFormat::kApriel, .body = Body::kJson, .signs = {"<tool_calls>["}, .open = "<tool_calls>", .close = "</tool_calls>",
     .list_begin = "[", .list_end = "]"},
    {.format = ToolFormat::kHermes, .body = Body::kJson, .signs = {"<tool_call>"}, .open = "<tool_call>\n", .close = "\n</tool_call>",
     .control = false},
    {.format = ToolFormat::kLlama, .body = Body::kJson, .signs = {"<|python_tag|>"}, .call_arguments = R"(", "parameters": )"},
    {.format = ToolFormat::kLlama, .body = Body::kJson, .signs = {"<|start_header_id|>", "\"parameters\""},
     .call_arguments = R"(", "parameters": )"},
};

}  // namespace

std::span<const CallSyntax> call_syntaxes() { return kSyntaxes; }

const CallSyntax& syntax_of(ToolFormat format) {
  return *std::find_if(kSyntaxes.begin(), kSyntaxes.end(), [&](const CallSyntax& one) { return one.format == format; });
}

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

bool shows_control_tokens(ToolFormat format) { return syntax_of(format).control; }

CallFrame frame_of(const CallSyntax& syntax) {
  if (syntax.body == Body::kJson)
    return {fmt::format("{}{}{}", syntax.open, syntax.list_begin, syntax.call), std::string(syntax.call_arguments),
            fmt::format("{}{}{}", syntax.call_end, syntax.list_end, syntax.close)};
  return {fmt::format("{}{}", syntax.open, syntax.each), fmt::format("{}{}", syntax.filler, syntax.name_end),
          fmt::format("{}{}", syntax.each_end, syntax.close)};
}

}  // namespace sx::server
