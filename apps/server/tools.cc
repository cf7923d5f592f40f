#include "server/tools.h"

#include <fmt/format.h>
#include <specextend/specextend.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

namespace sx::server {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::string_view kSpaces = " \t\r\n";
constexpr std::string_view kPythonTag = "<|python_tag|>";  // Llama may put it before a call
constexpr int kMaxDepth = 64;
constexpr size_t kMostCalls = 128;

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::string_view open_mark(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHermes: return "<tool_call>";
    case ToolFormat::kLlama: return "";
    case ToolFormat::kMistral: return "[TOOL_CALLS]";
  }
  return "";
}
std::string_view close_mark(ToolFormat format) { return format == ToolFormat::kHermes ? "</tool_call>" : ""; }
const char* arguments_key(ToolFormat format) { return format == ToolFormat::kLlama ? "parameters" : "arguments"; }

std::string call_id(ToolFormat format) {
  thread_local std::random_device device;
  if (format == ToolFormat::kMistral) return fmt::format("{:08x}{:01x}", device(), device() % 16);  // its templates want nine characters
  return fmt::format("call_{:08x}{:08x}{:08x}", device(), device(), device());
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Parses text of a model: nothing on broken JSON, or on nesting that would exhaust the stack of whoever walks it.
Json parse(std::string_view text) {
  bool deep = false;
  const auto bounded = [&](int depth, Json::parse_event_t, Json&) {
    deep = deep || depth > kMaxDepth;
    return !deep;
  };
  Json json = Json::parse(text, bounded, false);
  return deep || json.is_discarded() ? Json() : json;
}

size_t skip_spaces(std::string_view text, size_t at) { return std::min(text.size(), text.find_first_not_of(kSpaces, at)); }

// The first place from which on `text` could, with what follows, be `mark`; the text's size if there is none.
size_t possible(std::string_view text, std::string_view mark) {
  for (size_t at = text.find(mark.front()); at != std::string_view::npos; at = text.find(mark.front(), at + 1))
    if (mark.starts_with(text.substr(at, mark.size()))) return at;
  return text.size();
}

// The same with the white space before it: it belongs to a call if there is one.
size_t with_spaces_before(std::string_view text, size_t at) {
  while (at > 0 && has(kSpaces, text.substr(at - 1, 1))) --at;
  return at;
}

// One call as the model wrote it; arguments that are a text of JSON are taken, too.
bool read_call(const Json& json, const std::vector<std::string>& names, ToolCall& call) {
  if (!json.is_object()) return false;
  const auto name = json.find("name");
  if (name == json.end() || !name->is_string()) return false;
  call.name = name->get<std::string>();
  if (std::find(names.begin(), names.end(), call.name) == names.end()) return false;
  auto arguments = json.find("arguments");
  if (arguments == json.end()) arguments = json.find("parameters");
  Json value = arguments == json.end() || arguments->is_null() ? Json::object() : *arguments;
  if (value.is_string()) value = parse(value.get_ref<const std::string&>());
  if (!value.is_object()) return false;
  call.arguments = dump(value);
  return true;
}

}  // namespace

ToolStyle tool_style(std::string_view source) {
  const bool shown = has(source, "tools");
  if (has(source, "[TOOL_CALLS]")) return {ToolFormat::kMistral, shown};
  if (has(source, "<tool_call>")) return {ToolFormat::kHermes, shown};
  const bool llama = has(source, "<|python_tag|>") || (has(source, "<|start_header_id|>") && has(source, "\"parameters\""));
  if (llama) return {ToolFormat::kLlama, shown};
  return {ToolFormat::kHermes, false};
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
      message = {{"role", "assistant"}, {"content", content}};
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

std::string tool_grammar(ToolFormat format, const Json& tools) {
  Json calls = Json::array();
  for (const Json& tool : tools) {
    const Json& function = tool.at("function");
    const auto parameters = function.find("parameters");
    const bool any = parameters == function.end() || parameters->is_null() || parameters->empty();
    calls.push_back({{"type", "object"},
                     {"properties", {{"name", {{"const", function.at("name")}}},
                                     {arguments_key(format), any ? Json{{"type", "object"}} : *parameters}}},
                     {"required", {"name", arguments_key(format)}},
                     {"additionalProperties", false}});
  }
  const Json schema = calls.size() == 1 ? calls.front() : Json{{"anyOf", calls}};
  switch (format) {
    case ToolFormat::kHermes: return json_schema_to_gbnf(dump(schema), "<tool_call>\n", "\n</tool_call>");
    case ToolFormat::kMistral: return json_schema_to_gbnf(dump(schema), "[TOOL_CALLS] [", "]");
    case ToolFormat::kLlama: break;
  }
  return json_schema_to_gbnf(dump(schema));
}

ToolParser::ToolParser(ToolFormat format, std::vector<std::string> names, bool parallel)
    : format_(format), names_(std::move(names)), parallel_(parallel) {}

std::vector<ToolCall> ToolParser::read_calls(std::string_view text) const {
  const Json json = parse(text);
  std::vector<ToolCall> calls;
  const auto take = [&](const Json& one) {
    ToolCall call{call_id(format_), {}, {}};
    if (!read_call(one, names_, call)) return false;
    calls.push_back(std::move(call));
    return true;
  };
  if (json.is_object()) take(json);
  if (json.is_array())
    for (const Json& one : json)
      if (calls.size() >= kMostCalls || !take(one)) return {};  // one of them broken: all are text
  return calls;
}

void ToolParser::take(size_t size) {
  held_.erase(0, size);
  taken_ += size;
  scan_ = {};
}

// The first `size` bytes held are text for the user.
void ToolParser::content(Output& out, size_t size) {
  out.content.append(held_, 0, size);
  take(size);
}

// Where the JSON object or list that begins at `begin` ends; npos: not yet. Goes on where it stopped the last time.
size_t ToolParser::json_end(size_t begin) {
  Scan& s = scan_;
  for (s.at = std::max(s.at, begin); s.at < held_.size(); ++s.at) {
    const char c = held_[s.at];
    if (s.escaped) s.escaped = false;
    else if (s.quoted && c == '\\') s.escaped = true;
    else if (c == '"') s.quoted = !s.quoted;
    else if (s.quoted) continue;
    else if (c == '{' || c == '[') ++s.depth;
    else if ((c == '}' || c == ']') && --s.depth <= 0) {
      const size_t end = s.at + 1;
      scan_ = {};
      return end;
    }
  }
  return std::string::npos;
}

// held_ has the opening mark up to `begin`; a value must follow. True: something was decided.
bool ToolParser::call(Output& out, size_t begin, bool last) {
  const std::string_view text = held_;
  const auto refuse = [&] {  // the mark is text, and whatever follows is looked at anew
    plain_ = plain_ || format_ == ToolFormat::kLlama;
    content(out, std::max<size_t>(begin, 1));
    return true;
  };
  const size_t value = skip_spaces(text, begin);
  if (value == text.size()) return last ? refuse() : false;
  if (text[value] != '{' && text[value] != '[') return refuse();
  size_t end = json_end(value);
  if (end == std::string::npos) return last ? refuse() : false;
  std::vector<ToolCall> found = read_calls(text.substr(value, end - value));
  if (found.empty()) return refuse();
  if (const std::string_view mark = close_mark(format_); !mark.empty()) {
    const size_t next = skip_spaces(text, end);
    const std::string_view rest = text.substr(next, mark.size());
    if (rest == mark) end = next + mark.size();
    else if (!mark.starts_with(rest)) return refuse();
    else if (!last) return false;
    else end = text.size();  // the answer ended before the closing mark did
  }
  for (ToolCall& one : found) {
    if (parallel_ || calls_ == 0) out.calls.push_back(std::move(one));
    ++calls_;
  }
  take(end);
  return true;
}

// Decides something about the beginning of what is held; false: more text is needed, or nothing is left.
bool ToolParser::step(Output& out, bool last) {
  if (held_.empty()) return false;
  if (plain_) return content(out, held_.size()), true;
  if (format_ == ToolFormat::kLlama) {
    // A call is the whole answer; several are separated by semicolons.
    const std::string_view text = held_;
    size_t at = std::min(text.size(), text.find_first_not_of(calls_ ? " \t\r\n;" : kSpaces));
    const std::string_view rest = text.substr(at, kPythonTag.size());
    if (rest == kPythonTag) at += kPythonTag.size();
    else if (kPythonTag.starts_with(rest)) {
      if (!last) return false;
      if (calls_ && rest.empty()) take(held_.size());
      else plain_ = true;
      return true;
    }
    const size_t value = skip_spaces(text, at);
    if (value == text.size() && !last) return false;
    if (value < text.size() && (text[value] == '{' || text[value] == '[')) return call(out, at, last);
    return plain_ = true;
  }
  const std::string_view mark = open_mark(format_);
  const size_t at = possible(held_, mark), begin = with_spaces_before(held_, at);
  const bool found = std::string_view(held_).substr(at).starts_with(mark);
  if (begin > 0) return content(out, begin), true;
  if (found) return call(out, at + mark.size(), last);
  if (!last) return false;
  if (calls_ && held_.find_first_not_of(kSpaces) == std::string::npos) return take(held_.size()), true;
  return content(out, held_.size()), true;
}

ToolParser::Output ToolParser::add(std::string_view text) {
  held_ += text;
  Output out;
  while (step(out, false)) {}
  out.taken = taken_;
  return out;
}

ToolParser::Output ToolParser::finish() {
  Output out;
  while (step(out, true)) {}
  out.taken = taken_;
  return out;
}

}  // namespace sx::server
