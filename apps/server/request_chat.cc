// Messages and tools of a request.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "server/request_parts.h"
#include "server/tool_syntax.h"

namespace sx::server {

namespace {

constexpr size_t kMostCalls = 128;  // of one message
constexpr size_t kToolNameBytes = 64;

ApiError wrong_message(size_t index, const std::string& why) {
  return bad_request(fmt::format("messages[{}]: {}", index, why), "messages");
}

// A content is a string, or a list of parts of which only text is taken.
std::string content_text(const Json& content, size_t index) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw wrong_message(index, "'content' must be a string or a list of parts");
  std::string text;
  for (const Json& part : content) {
    const Json* type = part.is_object() ? field(part, "type") : nullptr;
    const bool refusal = is_text(type, "refusal");
    if (type && type->is_string() && !refusal && !is_text(type, "text"))
      throw wrong_message(index, fmt::format("parts of type '{}' are not supported, only text is",
                                             type->get_ref<const std::string&>()));
    const Json* value = type ? field(part, refusal ? "refusal" : "text") : nullptr;
    if (!value || !value->is_string())
      throw wrong_message(index, "each part of 'content' must be {\"type\": \"text\", \"text\": ...}");
    text += value->get_ref<const std::string&>();
  }
  return text;
}

// Templates want the arguments as an object, clients send its text.
Json call_arguments(const Json* given, size_t index) {
  Json arguments = given ? *given : Json::object();
  if (arguments.is_string()) {
    const std::string text = arguments.get<std::string>();
    try {
      arguments = text.find_first_not_of(" \t\r\n") == std::string::npos ? Json::object() : parse_object(text);
    } catch (const ApiError&) {
      throw wrong_message(index, "the 'arguments' of a tool call must be the text of a JSON object");
    }
  }
  if (!arguments.is_object())
    throw wrong_message(index, "the 'arguments' of a tool call must be the text of a JSON object");
  return arguments;
}

// `as_text`: the arguments, too, as clients send them.
Json tool_calls(const Json& given, size_t index, bool as_text) {
  if (!given.is_array() || given.size() > kMostCalls)
    throw wrong_message(index, fmt::format("'tool_calls' must be a list of at most {}", kMostCalls));
  Json calls = Json::array();
  for (const Json& one : given) {
    const Json* function = one.is_object() ? field(one, "function") : nullptr;
    const Json* name = function && function->is_object() ? field(*function, "name") : nullptr;
    const Json* id = one.is_object() ? field(one, "id") : nullptr;
    if (!name || !name->is_string() || (id && !id->is_string()))
      throw wrong_message(
          index,
          "each of 'tool_calls' must be {\"id\": ..., \"type\": \"function\", \"function\": {\"name\", \"arguments\"}}");
    const Json* given_arguments = field(*function, "arguments");
    Json arguments = call_arguments(given_arguments, index);
    if (as_text)
      arguments = given_arguments && given_arguments->is_string() && !arguments.empty() ? *given_arguments
                                                                                        : Json(arguments.dump());
    calls.push_back(
        {{"id", id ? *id : Json("")}, {"type", "function"}, {"function", {{"name", *name}, {"arguments", arguments}}}});
  }
  return calls;
}

Json read_message(const Json& one, size_t index, const ToolStyle& style) {
  const Json* role = one.is_object() ? field(one, "role") : nullptr;
  if (!role || !role->is_string()) throw wrong_message(index, "must be an object with a 'role' and a 'content'");
  std::string name = role->get<std::string>();
  if (name == "developer") name = "system";  // OpenAI's newer word
  if (name != "system" && name != "user" && name != "assistant" && name != "tool")
    throw wrong_message(index, fmt::format("there is no role '{}': system, developer, user, assistant, tool", name));
  const bool assistant = name == "assistant";
  const Json* content = field(one, "content");
  const Json* calls = field(one, "tool_calls");
  if (calls && calls->is_array() && calls->empty()) calls = nullptr;
  if (calls && !assistant) throw wrong_message(index, "'tool_calls' are for the assistant");
  if (!content && !(assistant && calls)) throw wrong_message(index, "must have a 'content'");
  Json message{{"role", name}, {"content", content ? content_text(*content, index) : ""}};
  const auto pass_on = [&](std::initializer_list<const char*> keys) {
    for (const char* key : keys)
      if (const Json* value = field(one, key)) {
        if (!value->is_string()) throw wrong_message(index, fmt::format("'{}' must be a string", key));
        message[key] = *value;
      }
  };
  // What the model thought before it answered: templates show it where the model was taught to see it. Servers call it
  // by two names, templates mostly by the first.
  if (assistant) pass_on({"reasoning_content", "reasoning", "thinking"});
  if (message.contains("reasoning") && !message.contains("reasoning_content"))
    message["reasoning_content"] = message["reasoning"];
  const bool shown = style.in_template || style.shows_calls;
  if (calls) message["tool_calls"] = tool_calls(*calls, index, shown && style.text_arguments);
  if (calls && shown && style.null_content && message["content"] == "") message["content"] = nullptr;
  if (name == "tool") pass_on({"tool_call_id", "name"});
  return message;
}

bool good_name(const std::string& name) {
  return !name.empty() && name.size() <= kToolNameBytes && std::all_of(name.begin(), name.end(), is_name_byte);
}

const std::string& name_of(const Json& tool) { return tool.at("function").at("name").get_ref<const std::string&>(); }

// The tools that 'tool_choice' leaves for a call that must come; none: no call must come. Clears `tools` for "none".
Json forced_tools(const Json& body, Json& tools) {
  const Json* choice = field(body, "tool_choice");
  if (!choice || is_text(choice, "auto")) return Json::array();
  if (is_text(choice, "none")) {
    tools = Json::array();
    return tools;
  }
  if (tools.empty()) throw bad_request("'tool_choice' needs 'tools'", "tool_choice");
  if (is_text(choice, "required")) return tools;
  const Json* function =
      choice->is_object() && is_text(field(*choice, "type"), "function") ? field(*choice, "function") : nullptr;
  const Json* name = function && function->is_object() ? field(*function, "name") : nullptr;
  if (!name || !name->is_string())
    throw bad_request(
        "'tool_choice' must be none, auto, required or {\"type\": \"function\", \"function\": {\"name\": ...}}",
        "tool_choice");
  for (const Json& tool : tools)
    if (name_of(tool) == name->get_ref<const std::string&>()) return Json::array({tool});
  throw bad_request(fmt::format("'tool_choice': there is no tool '{}'", name->get_ref<const std::string&>()),
                    "tool_choice");
}

// The assistant's own last message is the beginning of the answer, unless 'continue_final_message' is false or the
// template shall not begin an answer. It leaves the messages.
void read_prefill(const Json& body, Json& messages, CompletionRequest& request) {
  constexpr const char* kName = "continue_final_message";
  const Json& last = messages.back();
  const bool can = last.at("role") == "assistant" && !last.contains("tool_calls") && messages.size() > 1;
  const bool asked = flag_field(body, kName, false);
  if (asked && field(body, "add_generation_prompt") && request.add_generation_prompt)
    throw bad_request("'continue_final_message' and 'add_generation_prompt' exclude each other", kName);
  if (asked && !can) throw bad_request("'continue_final_message' needs a last message of the assistant", kName);
  if (!can || !flag_field(body, kName, true) || !(asked || request.add_generation_prompt)) return;
  if (last.at("content").is_string()) request.prefill = last.at("content").get<std::string>();
  if (last.contains("reasoning_content")) request.prefill_reasoning = last.at("reasoning_content").get<std::string>();
  messages.erase(messages.size() - 1);
  request.add_generation_prompt = true;
}

// 'reasoning_format': none leaves thoughts in the content, with their marks.
void read_reasoning(const Json& body, const Limits& limits, CompletionRequest& request) {
  std::string form = limits.splits_thoughts ? "auto" : "none";
  if (field(body, "reasoning_format")) form = text_field(body, "reasoning_format");
  if (form != "auto" && form != "deepseek" && form != "none")
    throw bad_request("'reasoning_format' must be auto, deepseek or none", "reasoning_format");
  if (form == "none") return;
  request.reasoning = limits.reasoning;
  if (request.reasoning.any() && request.reasoning.control) request.options.show_special = true;
}

// Variables of the template: 'chat_template_kwargs', and 'reasoning_effort', which some templates know.
void read_variables(const Json& body, const Limits& limits, CompletionRequest& request) {
  Json variables = Json::object();
  if (const Json* given = field(body, "chat_template_kwargs")) {
    if (!given->is_object()) throw bad_request("'chat_template_kwargs' must be an object", "chat_template_kwargs");
    variables = *given;
  }
  if (field(body, "reasoning_effort") && !variables.contains("reasoning_effort")) {
    const std::string effort = text_field(body, "reasoning_effort");
    constexpr const char* kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    if (std::ranges::count(kEfforts, effort) == 0)
      throw bad_request("'reasoning_effort' must be none, minimal, low, medium, high, xhigh or max",
                        "reasoning_effort");
    if (effort == "none") set_thinking(variables, false);
    else variables["reasoning_effort"] = effort;
  }
  if (limits.thinks) set_thinking(variables, *limits.thinks);
  const auto thinks = variables.find("enable_thinking");
  request.no_thoughts = limits.thinks == false && thinks != variables.end() && *thinks == false;
  if (!variables.empty()) request.template_variables = variables.dump();
  if (request.template_variables.size() > limits.schema_bytes)
    throw bad_request(fmt::format("'chat_template_kwargs' is longer than {} bytes", limits.schema_bytes),
                      "chat_template_kwargs");
}

}  // namespace

void set_thinking(Json& variables, bool on) {
  for (const char* name : {"enable_thinking", "thinking"}) variables.emplace(name, on);
}

Json read_messages(const Json& body, const Limits& limits) {
  const Json* given = field(body, "messages");
  if (!given || !given->is_array() || given->empty())
    throw bad_request("'messages' must be a list with at least one message", "messages");
  if (given->size() > limits.messages)
    throw bad_request(fmt::format("more than {} 'messages'", limits.messages), "messages");
  Json messages = Json::array();
  for (const Json& one : *given) messages.push_back(read_message(one, messages.size(), limits.tool_style));
  return messages;
}

Json read_tools(const Json& body, const Limits& limits) {
  const Json* given = field(body, "tools");
  if (!given) return Json::array();
  const auto wrong = [](size_t index, const std::string& why) {
    return bad_request(fmt::format("tools[{}]: {}", index, why), "tools");
  };
  if (!given->is_array()) throw bad_request("'tools' must be a list", "tools");
  if (given->size() > limits.tools) throw bad_request(fmt::format("more than {} 'tools'", limits.tools), "tools");
  Json tools = Json::array();
  std::set<std::string> names;
  for (const Json& one : *given) {
    const size_t index = tools.size();
    const Json* function =
        one.is_object() && is_text(field(one, "type"), "function") ? field(one, "function") : nullptr;
    const Json* name = function && function->is_object() ? field(*function, "name") : nullptr;
    if (!name || !name->is_string())
      throw wrong(index, "must be {\"type\": \"function\", \"function\": {\"name\": ...}}");
    if (!good_name(name->get_ref<const std::string&>()))
      throw wrong(index,
                  fmt::format("a name has 1 to {} letters, digits, underscores, dashes and dots", kToolNameBytes));
    if (!names.insert(name->get<std::string>()).second)
      throw wrong(index, fmt::format("'{}' is there twice", name->get<std::string>()));
    const Json* text = field(*function, "description");
    if (text && !text->is_string()) throw wrong(index, "'description' must be a string");
    const Json* parameters = field(*function, "parameters");
    if (parameters && !parameters->is_object()) throw wrong(index, "'parameters' must be a JSON schema: an object");
    // Templates see what the client wrote, in its order; 'strict' is said to the server, not to the model.
    Json kept = Json::object();
    for (const auto& [key, value] : function->items())
      if (key != "strict" && !value.is_null()) kept[key] = value;
    if (!parameters || parameters->empty())
      kept["parameters"] = {{"type", "object"}, {"properties", Json::object()}};  // they count on it
    tools.push_back({{"type", "function"}, {"function", kept}});
  }
  if (tools.dump().size() > limits.schema_bytes)
    throw bad_request(fmt::format("'tools' are longer than {} bytes", limits.schema_bytes), "tools");
  return tools;
}

void read_chat(const Json& body, const Limits& limits, CompletionRequest& request) {
  Json messages = read_messages(body, limits), tools = read_tools(body, limits);
  request.add_generation_prompt = flag_field(body, "add_generation_prompt", true);
  read_prefill(body, messages, request);
  if (!is_off(field(body, "function_call")) && !is_text(field(body, "function_call"), "none"))
    throw bad_request("'function_call' is not supported, use 'tool_choice'", "function_call");
  const bool parallel = flag_field(body, "parallel_tool_calls", true);
  const Json forced = forced_tools(body, tools);
  // A call that must come leaves nothing for a grammar to bind; otherwise the answer is a call, or what the grammar
  // binds.
  std::string& grammar = request.options.grammar;
  if (!forced.empty() || (!tools.empty() && !grammar.empty())) {
    try {
      const std::string call = tool_grammar(limits.tool_style.format, forced.empty() ? tools : forced);
      grammar = forced.empty() ? either_grammar(call, grammar) : call;
      if (!forced.empty()) request.grammar_field = "tools";
    } catch (const Error& e) { throw bad_request(e.what(), "tools"); }
  }
  for (const Json& tool : tools) request.tool_names.push_back(name_of(tool));
  if (!tools.empty()) request.tool_list = tools.dump();
  request.tool_format = limits.tool_style.format;
  request.must_call = !forced.empty();
  request.parallel_tool_calls = parallel && !request.must_call;
  if (!tools.empty() && shows_control_tokens(request.tool_format)) request.options.show_special = true;
  if (limits.tool_style.in_template) {
    if (!tools.empty()) request.tools = tools.dump();
  } else {
    tell_tools(messages, tools, limits.tool_style);
  }
  request.messages = messages.dump();
  request.tells_thoughts = flag_field(body, "include_reasoning", true);
  read_reasoning(body, limits, request);
  read_variables(body, limits, request);
}

}  // namespace sx::server
