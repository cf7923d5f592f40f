// Renders templates for tools/check_templates.py: reads one JSON object per line, {"template": text, "context": {...}},
// and answers with {"output": text} or {"error": text}. An optional "now" fixes the clock (seconds since 1970).
// Changing lists and dicts is refused as in transformers unless "read_only" is false.
#include <iostream>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/jinja/template.h"

using Json = nlohmann::ordered_json;

int main() {
  std::ios::sync_with_stdio(false);
  std::map<std::string, sx::jinja::Template> parsed;
  for (std::string line; std::getline(std::cin, line);) {
    Json answer;
    try {
      const Json request = Json::parse(line);
      const std::string source = request.at("template");
      auto it = parsed.find(source);
      if (it == parsed.end()) it = parsed.emplace(source, sx::jinja::Template::parse(source, "template")).first;
      sx::jinja::RenderSettings settings;
      settings.read_only = request.value("read_only", true);
      if (request.contains("now")) settings.now = request["now"].get<int64_t>();
      answer["output"] = it->second.render(request.at("context"), {}, settings);
    } catch (const sx::Error& error) { answer = Json{{"error", error.what()}}; }
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n" << std::flush;
  }
}
