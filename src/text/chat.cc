// Sets up the variables that a chat template sees. Holds the template for models that have none.
#include "text/chat.h"

#include "base/error.h"

namespace sx {

const char* ChatTemplate::fallback_source() {
  return R"({%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- elif message.content is iterable %}
        {%- for part in message.content %}
            {%- if part.text is string %}
                {{- part.text }}
            {%- else %}
                {{- raise_exception('the built-in chat template knows text parts only') }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %})";
}

ChatTemplate::ChatTemplate(std::string source, ChatTokens tokens, std::string name)
    : template_(jinja::Template::parse(source.empty() ? fallback_source() : std::move(source), std::move(name))),
      tokens_(std::move(tokens)) {}

std::string ChatTemplate::render(const ChatMessages& messages, const nlohmann::ordered_json& tools,
                                 bool add_generation_prompt, const nlohmann::ordered_json& extra) const {
  if (!messages.is_array()) fail("{}: the messages of a chat must be a list", template_.name());
  for (size_t i = 0; i < messages.size(); ++i)
    if (!messages[i].is_object() || !messages[i].contains("role") || !messages[i]["role"].is_string())
      fail("{}: message {} must be an object with a text 'role'", template_.name(), i);
  if (!tools.is_null() && !tools.is_array()) fail("{}: 'tools' must be a list or null", template_.name());
  if (!extra.is_null() && !extra.is_object()) fail("{}: extra variables must be an object", template_.name());
  nlohmann::ordered_json context;
  context["messages"] = messages;
  context["tools"] = tools;
  context["documents"] = nullptr;
  context["add_generation_prompt"] = add_generation_prompt;
  context["bos_token"] = tokens_.bos;
  context["eos_token"] = tokens_.eos;
  if (extra.is_object())
    for (const auto& [key, value] : extra.items()) context[key] = value;
  return template_.render(context, limits, settings);
}

}  // namespace sx
