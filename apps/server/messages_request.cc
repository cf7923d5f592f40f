// Requests of Anthropic's Messages.
#include <fmt/format.h>

#include <map>

#include "server/protocol_parts.h"

namespace sx::server {
namespace {

// What a block may have beside its own fields; prefixes are cached without being asked.
constexpr auto kOnBlocks = {"cache_control", "citations"};

ApiError wrong_block(const std::string& where, const std::string& type, const char* those) {
  return bad_request(fmt::format("'{}': blocks of type '{}' are not supported here, only {}", where, type, those),
                     where);
}

// A document as text, if it is one.
std::string document_text(FieldReader& block, const std::string& where) {
  const Json* source = block.get_object("source");
  if (!source) throw block.wrong("source", "must be there");
  FieldReader read(*source, where + ".source");
  const std::string type = read.text("type");
  if (type != "text") throw bad_request(fmt::format("'{}': documents must be of the type text", where), where);
  read.ignore({"media_type"});
  std::string text = read.text("data");
  read.done();
  const std::string context = block.text("context", ""), title = block.text("title", "");
  if (!context.empty()) text = context + "\n" + text;
  return title.empty() ? text : title + "\n" + text;
}

std::string block_text(const Json& given, const std::string& where) {
  FieldReader block(given, where);
  block.ignore(kOnBlocks);
  const std::string type = block.text("type");
  if (type != "text" && type != "document") throw wrong_block(where, type, "text and documents of text");
  std::string text = type == "text" ? block.text("text") : document_text(block, where);
  block.done();
  return text;
}

// A text, or the text blocks of a list.
std::string blocks_text(const Json& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw bad_request(fmt::format("'{}' must be a string or a list of blocks", where), where);
  std::string text;
  for (size_t i = 0; i < content.size(); ++i)
    text += (i > 0 ? "\n" : "") + block_text(content[i], fmt::format("{}.{}", where, i));
  return text;
}

class MessageReader {
 public:
  MessageReader(Json& messages, std::map<std::string, std::string>& calls) : messages_(messages), calls_(calls) {}

  void read(const Json& one, size_t index) {
    const std::string where = fmt::format("messages.{}", index);
    FieldReader message(one, where);
    const std::string role = message.text("role");
    if (role != "user" && role != "assistant" && role != "system")
      throw message.wrong("role", "must be user, assistant or system");
    const Json* content = message.get("content");
    if (!content) throw message.wrong("content", "must be there");
    message.done();
    if (content->is_string() || role == "system")
      return add_message(messages_, {{"role", role}, {"content", blocks_text(*content, where + ".content")}});
    if (!content->is_array()) throw message.wrong("content", "must be a string or a list of blocks");
    if (role == "user") user(*content, where + ".content");
    else assistant(*content, where + ".content");
  }

 private:
  void user(const Json& content, const std::string& where) {
    for (size_t i = 0; i < content.size(); ++i) {
      const std::string here = fmt::format("{}.{}", where, i);
      FieldReader block(content[i], here);
      const std::string type = block.text("type");
      if (type != "tool_result") {
        add_message(messages_, {{"role", "user"}, {"content", block_text(content[i], here)}});
        continue;
      }
      block.ignore(kOnBlocks);
      const std::string id = block.text("tool_use_id");
      const Json* given = block.get("content");
      std::string text = given ? blocks_text(*given, here + ".content") : "";
      if (block.flag("is_error", false)) text = "Error: " + text;
      block.done();
      Json result{{"role", "tool"}, {"tool_call_id", id}, {"content", text}};
      if (const auto call = calls_.find(id); call != calls_.end()) result["name"] = call->second;
      messages_.push_back(std::move(result));
    }
  }

  void assistant(const Json& content, const std::string& where) {
    std::string text, thinking;
    Json calls = Json::array();
    for (size_t i = 0; i < content.size(); ++i) {
      const std::string here = fmt::format("{}.{}", where, i);
      FieldReader block(content[i], here);
      block.ignore(kOnBlocks);
      const std::string type = block.text("type");
      if (type == "text") {
        text += block.text("text");
      } else if (type == "thinking") {
        thinking += block.text("thinking");
        block.ignore({"signature"});  // it proves nothing to a server that keeps no secret
      } else if (type == "redacted_thinking") {
        block.ignore({"data"});  // nobody but its maker can read it
      } else if (type == "tool_use") {
        const std::string id = block.text("id"), name = block.text("name");
        const Json* input = block.get_object("input");
        block.ignore({"caller"});
        calls_[id] = name;
        calls.push_back(chat_call(id, name, input ? input->dump() : "{}"));
      } else {
        throw wrong_block(here, type, "text, thinking and tool_use");
      }
      block.done();
    }
    Json message{{"role", "assistant"}, {"content", text}};
    if (!thinking.empty()) message["reasoning_content"] = thinking;
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    add_message(messages_, std::move(message));
  }

  Json& messages_;
  std::map<std::string, std::string>& calls_;  // names of tools by the ids of their calls
};

Json read_tools_of(FieldReader& body) {
  Json tools = Json::array();
  const Json* given = body.get_list("tools");
  for (size_t i = 0; given && i < given->size(); ++i) {
    FieldReader tool((*given)[i], fmt::format("tools.{}", i));
    const std::string type = tool.text("type", "custom");
    if (type != "custom")
      throw tool.wrong(
          "type", fmt::format("is '{}': this server has no tools of its own, only those of the client (custom)", type));
    tool.ignore({"cache_control", "strict", "eager_input_streaming", "input_examples"});
    const Json* schema = tool.get_object("input_schema");
    if (!schema) throw tool.wrong("input_schema", "must be there");
    const std::string name = tool.text("name");
    tools.push_back(chat_tool(name, tool.get("description"), schema));
    tool.done();
  }
  return tools;
}

void read_tool_choice(FieldReader& body, Json& chat) {
  const Json* given = body.get_object("tool_choice");
  if (!given) return;
  FieldReader choice(*given, "tool_choice");
  const std::string type = choice.text("type");
  if (type == "auto" || type == "none") chat["tool_choice"] = type;
  else if (type == "any") chat["tool_choice"] = "required";
  else if (type == "tool") chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", choice.text("name")}}}};
  else throw choice.wrong("type", "must be auto, any, tool or none");
  chat["parallel_tool_calls"] = !choice.flag("disable_parallel_tool_use", false);
  choice.done();
}

// Whether the model shall think, for templates that ask: not unless 'thinking' says so.
void read_thinking(FieldReader& body, Json& chat, ProtocolFacts& facts) {
  bool thinks = false;
  if (const Json* given = body.get_object("thinking")) {
    FieldReader thinking(*given, "thinking");
    const std::string type = thinking.text("type"), display = thinking.text("display", "summarized");
    if (type != "enabled" && type != "disabled" && type != "adaptive")
      throw thinking.wrong("type", "must be enabled, disabled or adaptive");
    if (display != "summarized" && display != "omitted")
      throw thinking.wrong("display", "must be summarized or omitted");
    if (const Json* budget = thinking.get("budget_tokens"); budget && whole_number(*budget).value_or(0) < 1)
      throw thinking.wrong("budget_tokens", "must be a whole number from 1");
    thinking.done();
    thinks = type != "disabled";
    facts.hide_reasoning = display == "omitted";
  }
  if (!chat.contains("chat_template_kwargs")) chat["chat_template_kwargs"] = Json::object();
  if (Json& variables = chat["chat_template_kwargs"]; variables.is_object()) set_thinking(variables, thinks);
}

void read_output(FieldReader& body, Json& chat) {
  const Json* given = body.get_object("output_config");
  const Json* format = body.get_object("output_format");
  if (given) {
    FieldReader output(*given, "output_config");
    output.pass(chat, "effort", "reasoning_effort");
    if (is_text(field(chat, "reasoning_effort"), "max")) chat["reasoning_effort"] = "xhigh";
    if (const Json* inner = output.get_object("format")) format = inner;
    output.done();
  }
  if (!format) return;
  FieldReader read(*format, "output_config.format");
  if (read.text("type") != "json_schema") throw read.wrong("type", "must be json_schema");
  const Json* schema = read.get_object("schema");
  if (!schema) throw read.wrong("schema", "must be there");
  read.done();
  chat["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", *schema}}}};
}

// Edits of the conversation by the server. The one that decides about earlier thoughts is the template's own business.
void read_edits(FieldReader& body) {
  const Json* given = body.get_object("context_management");
  if (!given) return;
  FieldReader management(*given, "context_management");
  const Json* edits = management.get_list("edits");
  for (size_t i = 0; edits && i < edits->size(); ++i) {
    FieldReader edit((*edits)[i], fmt::format("context_management.edits.{}", i));
    if (const std::string type = edit.text("type"); !type.starts_with("clear_thinking"))
      throw edit.wrong("type", fmt::format("is '{}', which is not supported", type));
  }
  management.done();
}

}  // namespace

CompletionRequest parse_messages(std::string_view text, const Limits& limits, bool counting) {
  const Json json = parse_object(text);
  FieldReader body(json, "");
  Json chat = Json::object(), messages = Json::array();
  const auto facts = std::make_shared<ProtocolFacts>();
  if (const Json* system = body.get("system"))
    if (std::string said = blocks_text(*system, "system"); !said.empty())
      messages.push_back({{"role", "system"}, {"content", std::move(said)}});
  const Json* given = body.get_list("messages");
  if (!given || given->empty()) throw body.wrong("messages", "must be a list with at least one message");
  if (given->size() > limits.messages) throw body.wrong("messages", fmt::format("are more than {}", limits.messages));
  std::map<std::string, std::string> calls;
  MessageReader reader(messages, calls);
  for (size_t i = 0; i < given->size(); ++i) reader.read((*given)[i], i);
  chat["messages"] = std::move(messages);
  body.pass(chat, "model");
  const Json* most = body.get("max_tokens");
  if (!most && !counting) throw body.wrong("max_tokens", "must be there");
  if (most && whole_number(*most).value_or(0) < 1) throw body.wrong("max_tokens", "must be a whole number from 1");
  if (most) chat["max_tokens"] = *most;
  if (const Json* heat = body.get("temperature"); heat && heat->is_number() && heat->get<double>() > 1)
    throw body.wrong("temperature", "must be a number from 0 to 1");
  for (const char* name : {"temperature", "top_p", "top_k", "stream"}) body.pass(chat, name);
  if (const Json* stops = body.get_list("stop_sequences")) chat["stop"] = *stops;
  if (Json tools = read_tools_of(body); !tools.empty()) chat["tools"] = std::move(tools);
  read_tool_choice(body, chat);
  body.pass_extensions(chat);
  read_thinking(body, chat, *facts);
  read_output(body, chat);
  read_edits(body);
  body.get_object("metadata");
  body.ignore({"service_tier", "inference_geo", "cache_control"});
  body.done();
  CompletionRequest request = read_chat_request(chat, limits);
  request.protocol = Protocol::kMessages;
  request.protocol_facts = facts;
  request.return_progress = request.stream;  // says how much of the prompt was cached before the text begins
  return request;
}

}  // namespace sx::server
