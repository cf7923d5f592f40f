// Requests of OpenAI's Responses.
#include <fmt/format.h>

#include <algorithm>

#include "server/protocol_parts.h"
#include "server/response_store.h"

namespace sx::server {
namespace {

// A text, or the texts of a list of parts.
std::string parts_text(const Json& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw bad_request(fmt::format("'{}' must be a string or a list of parts", where), where);
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string here = fmt::format("{}[{}]", where, i);
    FieldReader part(content[i], here);
    const std::string type = part.text("type");
    constexpr const char* kTexts[] = {"input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal"};
    if (std::ranges::count(kTexts, type) == 0)
      throw bad_request(fmt::format("'{}': parts of type '{}' are not supported, only texts are", here, type), here);
    text += part.text(type == "refusal" ? "refusal" : "text");
    part.ignore({"annotations", "logprobs"});  // what an earlier answer said about its text
    part.done();
  }
  return text;
}

// The items of a conversation as messages of a chat.
class ItemReader {
 public:
  Json messages = Json::array();

  void read(const Json& one, const std::string& where) {
    FieldReader item(one, where);
    item.ignore({"id", "status", "phase"});  // of an earlier answer
    const std::string type = item.text("type", "message");
    if (type == "message") message(item);
    else if (type == "reasoning") reasoning(item);
    else if (type == "function_call") {
      const std::string id = item.text("call_id"), name = item.text("name");
      Json& calls = assistant()["tool_calls"];
      if (calls.is_null()) calls = Json::array();
      calls.push_back(chat_call(id, name, item.text("arguments")));
    } else if (type == "function_call_output") {
      const std::string id = item.text("call_id");
      const Json* output = item.get("output");
      if (!output) throw item.wrong("output", "must be there");
      messages.push_back(
          {{"role", "tool"}, {"tool_call_id", id}, {"content", parts_text(*output, item.name_of("output"))}});
    } else {
      throw item.wrong(
          "type", fmt::format("is '{}': there are message, reasoning, function_call and function_call_output", type));
    }
    item.done();
  }

 private:
  void message(FieldReader& item) {
    const std::string role = item.text("role");
    if (role != "user" && role != "assistant" && role != "system" && role != "developer")
      throw item.wrong("role", "must be user, assistant, system or developer");
    const Json* content = item.get("content");
    if (!content) throw item.wrong("content", "must be there");
    const std::string text = parts_text(*content, item.name_of("content"));
    if (role != "assistant")
      return add_message(messages, {{"role", role == "developer" ? "system" : role}, {"content", text}});
    Json& last = assistant();
    last["content"] = last.at("content").get<std::string>() + text;
  }

  void reasoning(FieldReader& item) {
    const Json *content = item.get_list("content"), *summary = item.get_list("summary");
    std::string text = content ? parts_text(*content, item.name_of("content")) : "";
    if (text.empty()) text = item.text("encrypted_content", "");
    if (text.empty() && summary) text = parts_text(*summary, item.name_of("summary"));
    item.ignore({"encrypted_content"});
    if (text.empty()) return;
    Json& last = assistant();
    last["reasoning_content"] = last.value("reasoning_content", "") + text;
  }

  // What the assistant says until another role speaks is one message.
  Json& assistant() {
    if (messages.empty() || messages.back().at("role") != "assistant")
      messages.push_back({{"role", "assistant"}, {"content", ""}});
    return messages.back();
  }
};

Json input_items(FieldReader& body) {
  const Json* input = body.get("input");
  if (!input) throw body.wrong("input", "must be there: a string or a list of items");
  if (input->is_string()) return Json::array({{{"type", "message"}, {"role", "user"}, {"content", *input}}});
  if (!input->is_array()) throw body.wrong("input", "must be a string or a list of items");
  return *input;
}

void read_tools_of(FieldReader& body, Json& chat, Json& echo) {
  Json tools = Json::array();
  const Json* given = body.get_list("tools");
  for (size_t i = 0; given && i < given->size(); ++i) {
    FieldReader tool((*given)[i], fmt::format("tools[{}]", i));
    if (const std::string type = tool.text("type"); type != "function")
      throw tool.wrong("type",
                       fmt::format("is '{}': this server has no tools of its own, only functions of the client", type));
    tool.ignore({"strict"});  // calls that must come are bound by their schemas in any case
    const std::string name = tool.text("name");
    const Json* description = tool.get("description");
    tools.push_back(chat_tool(name, description, tool.get_object("parameters")));
    tool.done();
  }
  echo["tools"] = given ? *given : Json::array();
  echo["tool_choice"] = "auto";
  if (const Json* choice = body.get("tool_choice")) {
    echo["tool_choice"] = *choice;
    chat["tool_choice"] = *choice;
    if (choice->is_object()) {
      FieldReader read(*choice, "tool_choice");
      const std::string type = read.text("type");
      if (type == "allowed_tools") {
        Json allowed = Json::array();
        const Json* list = read.get_list("tools");
        for (size_t i = 0; list && i < list->size(); ++i) {
          FieldReader one((*list)[i], fmt::format("tool_choice.tools[{}]", i));
          const std::string name = one.text("name");
          one.ignore({"type"});
          const auto found =
              std::ranges::find_if(tools, [&](const Json& tool) { return tool["function"]["name"] == name; });
          if (found == tools.end()) throw one.wrong("name", fmt::format("is '{}', which is not in 'tools'", name));
          allowed.push_back(*found);
        }
        tools = std::move(allowed);
        chat["tool_choice"] = read.text("mode", "auto");
      } else if (type == "function") {
        chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", read.text("name")}}}};
      } else {
        throw read.wrong("type", "must be function or allowed_tools");
      }
      read.done();
    }
  }
  if (!tools.empty()) chat["tools"] = std::move(tools);
  body.pass(chat, "parallel_tool_calls");
  echo["parallel_tool_calls"] = chat.value("parallel_tool_calls", Json(true));
}

void read_text(FieldReader& body, Json& chat, Json& echo) {
  echo["text"] = {{"format", {{"type", "text"}}}};
  const Json* given = body.get_object("text");
  if (!given) return;
  FieldReader text(*given, "text");
  if (const Json* verbosity = text.get("verbosity")) {  // a hint, for templates that know it
    if (!verbosity->is_string()) throw text.wrong("verbosity", "must be a string");
    if (!chat.contains("chat_template_kwargs")) chat["chat_template_kwargs"] = Json::object();
    if (Json& variables = chat["chat_template_kwargs"]; variables.is_object())
      variables.emplace("verbosity", Json(*verbosity));
  }
  if (const Json* format = text.get_object("format")) {
    FieldReader read(*format, "text.format");
    const std::string type = read.text("type");
    read.ignore({"name", "description", "strict"});  // the schema always binds
    const Json* schema = read.get("schema");
    read.done();
    chat["response_format"] = {{"type", type}};
    if (type == "json_schema") {
      if (!schema || !schema->is_object()) throw read.wrong("schema", "must be there and an object");
      chat["response_format"]["json_schema"] = {{"schema", *schema}};
    } else if (type != "text" && type != "json_object") {
      throw read.wrong("type", "must be text, json_object or json_schema");
    }
    echo["text"]["format"] = *format;
  }
  text.done();
}

void read_effort(FieldReader& body, Json& chat, Json& echo) {
  echo["reasoning"] = {{"effort", nullptr}, {"summary", nullptr}};
  const Json* given = body.get_object("reasoning");
  if (!given) return;
  FieldReader reasoning(*given, "reasoning");
  reasoning.pass(chat, "effort", "reasoning_effort");
  reasoning.ignore({"summary", "generate_summary"});  // thoughts are told whole
  reasoning.done();
  if (const Json* effort = field(*given, "effort")) echo["reasoning"]["effort"] = *effort;
}

void read_include(FieldReader& body, Json& chat, Json& echo) {
  const Json* given = body.get_list("include");
  for (size_t i = 0; given && i < given->size(); ++i) {
    const Json* one = &(*given)[i];
    if (is_text(one, "message.output_text.logprobs")) chat["logprobs"] = true;
    else if (is_text(one, "reasoning.encrypted_content")) echo["include_encrypted"] = true;  // the writer takes it away
    else throw body.wrong("include", "may hold 'reasoning.encrypted_content' and 'message.output_text.logprobs' only");
  }
  body.pass(chat, "top_logprobs");
  echo["top_logprobs"] = chat.value("top_logprobs", Json(0));
  if (echo["top_logprobs"] != 0) chat["logprobs"] = true;
}

// What asks for something that is not there, unless it asks for nothing.
void refuse_missing_fields(FieldReader& body) {
  for (const char* name : {"background", "conversation", "prompt", "max_tool_calls", "context_management"})
    if (!is_off(body.get(name))) throw body.wrong(name, "is not supported");
  if (const Json* cut = body.get("truncation"); cut && !is_text(cut, "disabled"))
    throw body.wrong("truncation", "must be disabled");
  if (const Json* options = body.get_object("stream_options")) {
    FieldReader read(*options, "stream_options");
    if (read.flag("include_obfuscation", false)) throw read.wrong("include_obfuscation", "is not supported");
    read.done();
  }
}

}  // namespace

CompletionRequest parse_responses(std::string_view text, const Limits& limits,
                                  const std::shared_ptr<ResponseStore>& store, uint64_t scope) {
  const Json json = parse_object(text);
  FieldReader body(json, "");
  Json chat = Json::object(), echo = Json::object(), items = Json::array();
  body.pass(chat, "model");
  echo["previous_response_id"] = nullptr;
  if (body.get("previous_response_id")) {
    const std::string id = body.text("previous_response_id");
    const auto earlier = store->find(scope, id);
    if (!earlier)
      throw ApiError(400, "invalid_request_error", fmt::format("Previous response with id '{}' not found.", id),
                     "previous_response_id", "previous_response_not_found");
    items = Json::parse(earlier->items);
    echo["previous_response_id"] = id;
  }
  const Json input = input_items(body);
  if (items.size() + input.size() > limits.messages)
    throw body.wrong("input", fmt::format("has more than {} items with those before it", limits.messages));
  ItemReader reader;
  const std::string instructions = body.text("instructions", "");
  if (!instructions.empty()) reader.messages.push_back({{"role", "system"}, {"content", instructions}});
  echo["instructions"] = instructions.empty() ? Json(nullptr) : Json(instructions);
  for (const Json& item : items) reader.read(item, "previous_response_id");
  for (size_t i = 0; i < input.size(); ++i) reader.read(input[i], fmt::format("input[{}]", i));
  if (reader.messages.empty()) throw body.wrong("input", "is empty");
  items.insert(items.end(), input.begin(), input.end());
  chat["messages"] = std::move(reader.messages);
  chat["continue_final_message"] = false;
  if (const Json* most = body.get("max_output_tokens")) {
    if (whole_number(*most).value_or(0) < 1) throw body.wrong("max_output_tokens", "must be a whole number from 1");
    chat["max_tokens"] = *most;
  }
  echo["max_output_tokens"] = chat.value("max_tokens", Json());
  for (const char* name : {"temperature", "top_p", "stream", "stop"}) body.pass(chat, name);
  echo["temperature"] = chat.value("temperature", Json(1.0));
  echo["top_p"] = chat.value("top_p", Json(1.0));
  body.pass_extensions(chat);
  read_tools_of(body, chat, echo);
  read_text(body, chat, echo);
  read_effort(body, chat, echo);
  read_include(body, chat, echo);
  refuse_missing_fields(body);
  const bool keep = body.flag("store", true);
  const Json* metadata = body.get_object("metadata");
  echo["store"] = keep;
  echo["metadata"] = metadata ? *metadata : Json::object();
  echo["truncation"] = "disabled";
  body.text("user", ""), body.text("prompt_cache_key", ""), body.text("safety_identifier", "");
  body.ignore({"service_tier", "prompt_cache_retention", "client_metadata"});
  body.done();
  CompletionRequest request = read_chat_request(chat, limits);
  request.protocol = Protocol::kResponses;
  const auto facts = std::make_shared<ProtocolFacts>();
  facts->echo = std::move(echo);
  if (keep)
    facts->keep = [store, scope, items = std::move(items)](const Json& response) {
      Json all = items;
      for (const Json& item : response.at("output")) all.push_back(item);
      store->keep(scope, {response.at("id").get<std::string>(), text_of(response), text_of(all)});
    };
  request.protocol_facts = facts;
  return request;
}

}  // namespace sx::server
