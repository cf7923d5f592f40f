// The forms in which models write calls: what a template makes of a message with calls is read back as the same calls, cut anywhere; what
// a grammar forces is read, too.
#include <gtest/gtest.h>
#include <specextend/specextend.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "server/tool_syntax.h"
#include "server/tool_values.h"
#include "server/tools.h"
#include "text/chat.h"
#include "text/grammar_support.h"

namespace sx::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTools = R"([{"type": "function", "function": {"name": "get_it", "description": "Gets it.", "parameters": {"type": "object",
  "properties": {"s": {"type": "string", "description": "A text."}, "i": {"type": "integer", "description": "A number."},
  "b": {"type": "boolean", "description": "Or not."}, "l": {"type": "array", "items": {"type": "integer"}, "description": "Some."},
  "o": {"type": "object", "properties": {"k": {"type": "string"}}, "description": "One."}}, "required": ["s"]}}},
  {"type": "function", "function": {"name": "f.g-2", "description": "Does it.", "parameters": {"type": "object", "properties": {}}}}])";

std::string text_of(const std::vector<ToolCall>& calls) {
  std::string out;
  for (const ToolCall& call : calls) {
    Json arguments = Json::object();
    const nlohmann::json sorted = nlohmann::json::parse(call.arguments);  // Gemma's template sorts them
    out += call.name + "(" + sorted.dump() + ")";
  }
  return out;
}

struct Heard {
  std::string content;
  std::vector<ToolCall> calls;
};

Heard hear(ToolFormat format, const std::string& text, size_t piece) {
  ToolParser parser(format, {"get_it", "f.g-2"}, true, kTools);
  Heard heard;
  const auto take = [&](ToolParser::Output out) {
    heard.content += out.content;
    for (ToolCall& call : out.calls) heard.calls.push_back(std::move(call));
  };
  for (size_t i = 0; i < text.size(); i += piece) take(parser.add(text.substr(i, piece)));
  take(parser.finish());
  return heard;
}

Json call_json(const std::string& name, const Json& arguments, const ToolStyle& style, const std::string& id) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", style.text_arguments ? Json(arguments.dump()) : arguments}}}};
}

// A conversation with these calls through a template, and what the parser reads of what the template has written behind the prompt.
Heard through(const ChatTemplate& chat, const ToolStyle& style, const std::vector<std::pair<std::string, Json>>& calls, size_t piece) {
  Json messages = Json::array({{{"role", "user"}, {"content", "Hi"}}});
  const Json tools = style.in_template ? Json::parse(kTools) : Json(nullptr);
  const std::string prompt = chat.render(messages, tools, true);
  Json list = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) list.push_back(call_json(calls[i].first, calls[i].second, style, "a1b2c3d4" + std::to_string(i)));
  messages.push_back({{"role", "assistant"}, {"content", style.null_content ? Json(nullptr) : Json("")}, {"tool_calls", list}});
  std::string text = chat.render(messages, tools, false);
  size_t shared = 0;
  while (shared < std::min(text.size(), prompt.size()) && text[shared] == prompt[shared]) ++shared;
  while (shared > 0 && (uint8_t(text[shared]) & 0xC0) == 0x80) --shared;  // a whole character
  // The text of an answer has no prompt before it: a mark that both begin with is whole again.
  if (const size_t mark = text.rfind('<', shared); mark != std::string::npos && text.find('>', mark) >= shared) shared = mark;
  return hear(style.format, text.substr(shared), piece);
}

ToolStyle style_of(const std::string& source, const ChatTemplate& chat) {
  return tool_style(source, [&](const std::string& messages, const std::string& tools) {
    return chat.render(Json::parse(messages), Json::parse(tools), true);
  });
}

const std::vector<std::vector<std::pair<std::string, Json>>>& conversations() {
  static const std::vector<std::vector<std::pair<std::string, Json>>> kAll = {
      {{"f.g-2", Json::object()}},
      {{"get_it", Json::parse(R"({"s": "x \"y\"\n< é </b> it's 5", "i": 12, "b": true, "l": [1, 2], "o": {"k": "v, }w"}})")}},
      {{"get_it", Json::parse(R"({"s": ""})")}, {"f.g-2", Json::object()}, {"get_it", Json::parse(R"({"s": "12", "b": false, "i": -3})")}}};
  return kAll;
}

std::string expected_of(const std::vector<std::pair<std::string, Json>>& calls) {
  std::vector<ToolCall> all;
  for (const auto& [name, arguments] : calls) all.push_back({"", name, arguments.dump()});
  return text_of(all);
}

// Every template that is given in a folder, for those who have published ones: each is read back, or is known to have no form of its own.
TEST(ToolForms, PublishedTemplates) {
  const char* shared = std::getenv("SPECEXTEND_SHARED");
  const std::filesystem::path folder = (shared ? std::filesystem::path(shared) : std::filesystem::path(SX_SOURCE_DIR).parent_path() / "shared") / "data/chat_templates";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".jinja") continue;
    const std::string name = entry.path().filename().string();
    std::stringstream source;
    source << std::ifstream(entry.path()).rdbuf();
    const ChatTemplate chat(source.str(), {"<s>", "</s>"});
    const ToolStyle style = style_of(source.str(), chat);
    if (std::getenv("SX_SHOW_FORMS"))
      std::printf("%-60s form %2d, shows tools %d, calls %d, text arguments %d, null content %d\n", name.c_str(), int(style.format), style.in_template,
                  style.shows_calls, style.text_arguments, style.null_content);
    if (!style.in_template && !style.shows_calls) {
      EXPECT_EQ(name, "google-gemma-2-2b-it.jinja");
      continue;
    }
    for (const auto& calls : conversations()) {
      // Some show one call only, or refuse several.
      std::vector<std::vector<std::pair<std::string, Json>>> tried = {calls};
      if (name.find("gpt-oss") != name.npos || name.find("GigaChat") != name.npos || name.find("meta-llama") != name.npos) tried = {{calls[0]}};
      for (const auto& some : tried)
        for (const size_t piece : {size_t(1), size_t(1) << 20}) {
          try {
            const Heard heard = through(chat, style, some, piece);
            EXPECT_EQ(text_of(heard.calls), expected_of(some)) << name << " in pieces of " << piece;
            if (std::getenv("SX_SHOW_FORMS")) std::printf("  content %s\n", Json(heard.content).dump().c_str());
          } catch (const Error& e) {
            ADD_FAILURE() << name << ": " << e.what();
          }
        }
    }
  }
}

}  // namespace
}  // namespace sx::server
