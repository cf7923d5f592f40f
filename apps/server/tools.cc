#include "server/tools.h"

#include <fmt/format.h>
#include <specextend/specextend.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/tool_schema.h"
#include "server/tool_syntax.h"

namespace sx::server {

using Json = nlohmann::ordered_json;

namespace {

using Body = CallSyntax::Body;

// Where the signs of several are in a template, the first is meant.
const std::vector<CallSyntax> kSyntaxes = {
    {.format = ToolFormat::kMistralCallId, .body = Body::kNamed, .signs = {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"},
     .each = "[TOOL_CALLS]", .name_end = "[ARGS]", .id = "[CALL_ID]", .writes_id = true},
    {.format = ToolFormat::kMistralNamed, .body = Body::kNamed, .signs = {"[TOOL_CALLS]", "[ARGS]"},
     .each = "[TOOL_CALLS]", .name_end = "[ARGS]", .id = "[CALL_ID]"},
    {.format = ToolFormat::kMistral, .body = Body::kJson, .signs = {"[TOOL_CALLS]"}, .open = "[TOOL_CALLS] ", .list = true},
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
    {.format = ToolFormat::kNemotron, .body = Body::kJson, .signs = {"<TOOLCALL>"}, .open = "<TOOLCALL>", .close = "</TOOLCALL>", .list = true},
    {.format = ToolFormat::kApriel, .body = Body::kJson, .signs = {"<tool_calls>["}, .open = "<tool_calls>", .close = "</tool_calls>",
     .list = true},
    {.format = ToolFormat::kHermes, .body = Body::kJson, .signs = {"<tool_call>"}, .open = "<tool_call>\n", .close = "\n</tool_call>",
     .control = false},
    {.format = ToolFormat::kLlama, .body = Body::kJson, .signs = {"<|python_tag|>"}},
    {.format = ToolFormat::kLlama, .body = Body::kJson, .signs = {"<|start_header_id|>", "\"parameters\""}},
};

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Names that no template has in it.
constexpr const char* kProbeTool = "probe_of_tools", *kProbeKey = "probe_key", *kProbeValue = "probe value";
constexpr const char* kProbeId = "a1b2c3d4e";  // as Mistral's templates want it

// What the template makes of a conversation with a call; nothing if it fails.
std::string rendered_call(const RenderTemplate& render, const Json& tools, const Json& arguments) {
  const Json call{{"id", kProbeId}, {"type", "function"}, {"function", {{"name", kProbeTool}, {"arguments", arguments}}}};
  const Json messages = Json::array({{{"role", "user"}, {"content", "Hi"}},
                                     {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}},
                                     {{"role", "tool"}, {"tool_call_id", kProbeId}, {"name", kProbeTool}, {"content", "Ho"}}});
  try {
    return render(dump(messages), dump(tools));
  } catch (const Error&) {
    return {};
  }
}

// Whether a call's arguments are in the text, neither escaped twice nor as Python would print them.
bool shows_arguments(const std::string& text) {
  return has(text, kProbeKey) && has(text, kProbeValue) && !has(text, fmt::format("'{}'", kProbeKey)) &&
         !has(text, fmt::format("\\\"{}", kProbeKey));
}

}  // namespace

const CallSyntax& syntax_of(ToolFormat format) {
  return *std::find_if(kSyntaxes.begin(), kSyntaxes.end(), [&](const CallSyntax& one) { return one.format == format; });
}

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

bool shows_control_tokens(ToolFormat format) { return syntax_of(format).control; }

ToolStyle tool_style(std::string_view source, const RenderTemplate& render) {
  const auto known = std::find_if(kSyntaxes.begin(), kSyntaxes.end(), [&](const CallSyntax& one) {
    return std::all_of(one.signs.begin(), one.signs.end(), [&](std::string_view sign) { return has(source, sign); });
  });
  if (known == kSyntaxes.end()) return {};
  const Json parameters{{"type", "object"}, {"properties", {{kProbeKey, {{"type", "string"}, {"description", "A text."}}}}},
                        {"required", Json::array({kProbeKey})}};
  const Json tools = Json::array({{{"type", "function"}, {"function", {{"name", kProbeTool}, {"description", "It probes."},
                                                                     {"parameters", parameters}}}}});
  ToolStyle style{known->format};
  try {
    style.in_template = has(render(R"([{"role":"user","content":"Hi"}])", dump(tools)), kProbeTool);
  } catch (const Error&) {
    style.in_template = has(source, "tools");
  }
  const Json arguments{{kProbeKey, kProbeValue}};
  style.text_arguments = !shows_arguments(rendered_call(render, tools, arguments)) &&
                         shows_arguments(rendered_call(render, tools, dump(arguments)));
  return style;
}

void tell_tools(Json& messages, const Json& tools) {
  std::string text = "You may call these functions, each described by a JSON object:\n";
  for (const Json& tool : tools) text += dump(tool.at("function")) + "\n";
  text += "To call one, write nothing but its name and arguments in this form:\n"
          "<tool_call>\n{\"name\": \"NAME\", \"arguments\": {\"ARGUMENT\": \"VALUE\"}}\n</tool_call>";
  if (tools.empty()) text.clear();
  // What such a template would drop or refuse: calls and results become text.
  for (Json& message : messages) {
    if (message.contains("tool_calls")) {
      std::string content = message.at("content").is_string() ? message.at("content").get<std::string>() : "";
      for (const Json& call : message.at("tool_calls")) {
        const Json& function = call.at("function");
        content += fmt::format("{}<tool_call>\n{}\n</tool_call>", content.empty() ? "" : "\n",
                               dump({{"name", function.at("name")}, {"arguments", function.at("arguments")}}));
      }
      message["content"] = content;
      message.erase("tool_calls");
    } else if (message.at("role") == "tool") {
      message = {{"role", "user"},
                 {"content", fmt::format("<tool_response>\n{}\n</tool_response>", message.at("content").get<std::string>())}};
    }
  }
  if (text.empty()) return;
  if (!messages.empty() && messages.front().at("role") == "system") {
    messages.front()["content"] = messages.front().at("content").get<std::string>() + "\n\n" + text;
  } else {
    messages.insert(messages.begin(), Json{{"role", "system"}, {"content", text}});
  }
}

namespace {

const Json& parameters_of(const Json& function) {
  static const Json kAny{{"type", "object"}};
  const auto parameters = function.find("parameters");
  return parameters == function.end() || parameters->is_null() || parameters->empty() ? kAny : *parameters;
}

// What stands before and after the arguments of a call of `name`.
std::pair<std::string, std::string> around_arguments(const CallSyntax& syntax, const std::string& name) {
  if (syntax.body != Body::kJson)
    return {fmt::format("{}{}{}", syntax.open, syntax.each, name), fmt::format("{}{}", syntax.each_end, syntax.close)};
  const char* key = syntax.format == ToolFormat::kLlama ? "parameters" : "arguments";
  return {fmt::format(R"({}{}{{"name": "{}", "{}": )", syntax.open, syntax.list ? "[" : "", name, key),
          fmt::format("}}{}{}", syntax.list ? "]" : "", syntax.close)};
}

}  // namespace

std::string tool_grammar(ToolFormat format, const Json& tools) {
  const CallSyntax& syntax = syntax_of(format);
  std::vector<std::pair<std::string, std::string>> schemas;  // each a root of its own: a $ref leads somewhere in its tool's parameters
  std::string root = "root ::= ", rules;
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& function = tools[i].at("function");
    const std::string name = function.at("name").get<std::string>(), rule = fmt::format("Call-{}", i);
    const auto [before, after] = around_arguments(syntax, name);
    root += (i ? " | " : "") + rule;
    rules += fmt::format("{} ::= {}", rule, gbnf_quote(before));
    if (syntax.writes_id) rules += fmt::format(" {} [a-zA-Z0-9]{{9}}", gbnf_quote(syntax.id));
    if (!syntax.name_end.empty()) rules += " " + gbnf_quote(syntax.name_end);
    if (syntax.body == Body::kParameters) {
      rules += parameters_grammar(syntax, name, parameters_of(function), rule, schemas);
    } else {
      rules += fmt::format(" {}-json", rule);
      schemas.emplace_back(rule + "-json", dump(parameters_of(function)));
    }
    if (!after.empty()) rules += " " + gbnf_quote(after);
    rules += "\n";
  }
  if (syntax.body == Body::kParameters) rules += raw_text_rules(syntax.value_end);
  return json_schemas_to_gbnf(root + "\n" + rules, schemas);
}

}  // namespace sx::server
