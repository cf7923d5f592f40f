// Turns a conversation into the prompt text a model was trained on, with the chat template that comes with the model.
// Templates see what transformers gives them: messages, tools, documents, add_generation_prompt, bos_token, eos_token,
// any extra variables, and the functions raise_exception and strftime_now.
#pragma once
#include <string>

#include <nlohmann/json.hpp>

#include "text/jinja/template.h"

namespace sx {

// A list of messages: [{"role": "user", "content": "..."}, ...]. The order of keys is kept.
using ChatMessages = nlohmann::ordered_json;

struct ChatTokens {
  std::string bos, eos;  // the texts of the model's begin and end tokens
};

class ChatTemplate {
 public:
  // An empty source selects the built-in template (ChatML). `name` appears in errors, e.g. the model's file.
  // Throws sx::Error when the source is not a valid template.
  explicit ChatTemplate(std::string source, ChatTokens tokens = {}, std::string name = "chat template");

  // Returns the prompt. `tools` is a list of JSON-schema functions or null; `extra` an object of further variables
  // (enable_thinking, date_string, ...), which win over the standard ones. Throws sx::Error naming template and line
  // when the template raises (raise_exception), uses something undefined, or exceeds the limits.
  std::string render(const ChatMessages& messages, const nlohmann::ordered_json& tools = nullptr,
                     bool add_generation_prompt = true,
                     const nlohmann::ordered_json& extra = nlohmann::ordered_json::object()) const;

  // These apply to later calls of render().
  jinja::RenderLimits limits;
  jinja::RenderSettings settings;

  static const char* fallback_source();

 private:
  jinja::Template template_;
  ChatTokens tokens_;
};

}  // namespace sx
