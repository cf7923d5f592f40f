#include "server/tools.h"

#include <fmt/format.h>
#include <specextend/specextend.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "server/tool_schema.h"
#include "server/tool_syntax.h"
#include "server/tool_text.h"
#include "server/tool_values.h"

namespace sx::server {

using Json = nlohmann::ordered_json;

namespace {

// The row whose signs are all in a text; nothing if there is none.
const CallSyntax* syntax_with_signs(std::string_view text) {
  for (const CallSyntax& one : call_syntaxes())
    if (std::all_of(one.signs.begin(), one.signs.end(), [&](std::string_view sign) { return has(text, sign); }))
      return &one;
  return nullptr;
}

// What a text has behind what it shares with another.
std::string_view behind(std::string_view text, std::string_view shared) {
  return text.substr(
      size_t(std::mismatch(text.begin(), text.end(), shared.begin(), shared.end()).first - text.begin()));
}

// What the template makes of messages; nothing if it fails.
std::optional<std::string> rendered(const RenderTemplate& render, const std::string& messages,
                                    const std::string& tools) {
  try {
    return render(messages, tools);
  } catch (const Error&) { return {}; }
}

// Names that no template has in it.
constexpr const char *kProbeTool = "probe_of_tools", *kProbeKey = "probe_key", *kProbeValue = "probe value";
constexpr const char* kProbeId = "a1b2c3d4e";  // as Mistral's templates want it

constexpr const char* kProbeMessages = R"([{"role":"user","content":"Hi"}])";

// What the template makes of a conversation with a call; nothing if it fails.
std::string rendered_call(const RenderTemplate& render, const Json& tools, const Json& arguments,
                          const Json& content = "") {
  const Json call{
      {"id", kProbeId}, {"type", "function"}, {"function", {{"name", kProbeTool}, {"arguments", arguments}}}};
  const Json messages =
      Json::array({{{"role", "user"}, {"content", "Hi"}},
                   {{"role", "assistant"}, {"content", content}, {"tool_calls", Json::array({call})}},
                   {{"role", "tool"}, {"tool_call_id", kProbeId}, {"name", kProbeTool}, {"content", "Ho"}}});
  return rendered(render, dump(messages), dump(tools)).value_or("");
}

// Whether a call's arguments are in the text, neither escaped twice nor as Python would print them.
bool shows_arguments(const std::string& text) {
  return has(text, kProbeKey) && has(text, kProbeValue) && !has(text, fmt::format("'{}'", kProbeKey)) &&
         !has(text, fmt::format("\\\"{}", kProbeKey));
}

}  // namespace

ToolStyle tool_style(std::string_view source, const RenderTemplate& render) {
  const Json parameters{{"type", "object"},
                        {"properties", {{kProbeKey, {{"type", "string"}, {"description", "A text."}}}}},
                        {"required", Json::array({kProbeKey})}};
  const Json tools =
      Json::array({{{"type", "function"},
                    {"function", {{"name", kProbeTool}, {"description", "It probes."}, {"parameters", parameters}}}}});
  const Json arguments{{kProbeKey, kProbeValue}};
  const std::optional<std::string> with_tools = rendered(render, kProbeMessages, dump(tools));
  const std::string prompt = with_tools ? *with_tools : rendered(render, kProbeMessages, "[]").value_or("");
  std::string as_object = rendered_call(render, tools, arguments),
              as_text = rendered_call(render, tools, dump(arguments));
  if (!with_tools && as_object.empty()) {
    as_object = rendered_call(render, Json::array(), arguments),
    as_text = rendered_call(render, Json::array(), dump(arguments));
  }
  const CallSyntax* known = syntax_with_signs(source);
  // Some put their marks together from parts: then what comes out shows them.
  if (!known) known = syntax_with_signs(behind(as_object, prompt));
  if (!known) return {};
  ToolStyle style{known->format};
  // A template that shows tools to nobody but its own engine fails with them and works without.
  style.in_template = with_tools ? has(*with_tools, kProbeTool) : has(source, "tools") && prompt.empty();
  style.text_arguments = !shows_arguments(as_object) && shows_arguments(as_text);
  style.shows_calls = has(behind(style.text_arguments ? as_text : as_object, prompt), kProbeValue);
  if (!style.in_template && !style.shows_calls) return {};  // they are told in another form
  const Json& probed = with_tools ? tools : Json::array();
  const std::string without =
      rendered_call(render, probed, style.text_arguments ? Json(dump(arguments)) : arguments, nullptr);
  style.null_content = shows_arguments(without) && without.size() < (style.text_arguments ? as_text : as_object).size();
  return style;
}

namespace {

// A call in the model's form, with names that stand for any.
std::string example_call(const CallSyntax& syntax) {
  const auto [before, between, after] = frame_of(syntax);
  const Json arguments{{"ARGUMENT", "VALUE"}};
  std::string inside = R"({"ARGUMENT": "VALUE"})";
  if (syntax.body == CallSyntax::Body::kParameters) {
    const char* kind = syntax.kind == CallSyntax::Kind::kIsText ? "true"
                       : syntax.kind == CallSyntax::Kind::kType ? "string"
                                                                : "";
    inside =
        fmt::format("{}ARGUMENT{}{}{}VALUE{}", syntax.key, syntax.key_end, kind, syntax.value_begin, syntax.value_end);
  } else if (syntax.notation != CallSyntax::Notation::kJson) {
    const std::string all = write_key("ARGUMENT", syntax.notation, true) + write_value("VALUE", syntax.notation);
    inside = syntax.notation == CallSyntax::Notation::kPython ? "(" + all + ")" : "{" + all + "}";
  }
  const bool id = !syntax.id_form.empty();
  return fmt::format("{}{}{}NAME{}{}{}{}", before, id && syntax.id_first ? fmt::format("ID{}", syntax.id) : "",
                     syntax.name_begin, id && !syntax.id_first ? fmt::format("{}0", syntax.id) : "", between, inside,
                     after);
}

}  // namespace

void tell_tools(Json& messages, const Json& tools, const ToolStyle& style) {
  std::string text = "You may call these functions, each described by a JSON object:\n";
  for (const Json& tool : tools) text += dump(tool.at("function")) + "\n";
  text +=
      "To call one, write nothing but its name and arguments in this form:\n" + example_call(syntax_of(style.format));
  if (tools.empty()) text.clear();
  // What such a template would drop or refuse: calls and results become text.
  for (Json& message : messages) {
    if (style.shows_calls) break;
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
      message = {
          {"role", "user"},
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

}  // namespace

std::string tool_grammar(ToolFormat format, const Json& tools) {
  const CallSyntax& syntax = syntax_of(format);
  const bool noted = syntax.notation != CallSyntax::Notation::kJson;
  const auto [before, between, after] = frame_of(syntax);
  std::vector<std::pair<std::string, std::string>>
      schemas;  // each a root of its own: a $ref leads somewhere in its tool's parameters
  std::string root = "root ::= ", rules;
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& function = tools[i].at("function");
    const std::string name = function.at("name").get<std::string>(), rule = fmt::format("Call-{}", i);
    root += (i ? " | " : "") + rule;
    std::string body = rule + " ::= " + mark_literal(syntax, before);
    const bool id = !syntax.id_form.empty();
    if (id && syntax.id_first) body += fmt::format(" {} {}", syntax.id_form, mark_literal(syntax, syntax.id));
    body += " " + gbnf_quote(fmt::format("{}{}", syntax.name_begin, name));
    if (id && !syntax.id_first) body += fmt::format(" {} {}", mark_literal(syntax, syntax.id), syntax.id_form);
    if (!between.empty()) body += " " + mark_literal(syntax, between);
    if (syntax.body == CallSyntax::Body::kParameters) {
      body += parameters_grammar(syntax, name, parameters_of(function), rule, schemas);
    } else if (noted) {
      body += " " + arguments_grammar(syntax, name, parameters_of(function), rule, rules, schemas);
    } else {
      body += fmt::format(" {}-json", rule);
      schemas.emplace_back(rule + "-json", dump(parameters_of(function)));
    }
    if (!after.empty()) body += " " + mark_literal(syntax, after);
    rules += body + "\n";
  }
  if (syntax.body == CallSyntax::Body::kParameters) rules += raw_text_rules(syntax.value_end);
  if (noted) rules += notation_rules(syntax);
  return json_schemas_to_gbnf(root + "\n" + rules, schemas);
}

}  // namespace sx::server
