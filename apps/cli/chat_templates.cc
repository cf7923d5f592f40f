#include "cli/chat_templates.h"

#include <specextend/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace sx::cli {
namespace {

struct NamedTemplate {
  const char *name, *source;
};

// What each family writes around a turn; no tools, no thoughts.
constexpr std::array kTemplates{
    NamedTemplate{"chatml",
                  "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                  "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"},
    NamedTemplate{"command-r",
                  "{% for m in messages %}<|START_OF_TURN_TOKEN|><|"
                  "{{ {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'}[m.role] }}_TOKEN|>"
                  "{{ m.content | trim }}<|END_OF_TURN_TOKEN|>{% endfor %}"
                  "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"},
    NamedTemplate{
        "gemma",
        "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else 'user' }}\n"
        "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"},
    NamedTemplate{"llama3",
                  "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
                  "{{ m.content | trim }}<|eot_id|>{% endfor %}"
                  "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"},
};

}  // namespace

std::vector<std::string> chat_template_names() {
  std::vector<std::string> names;
  for (const NamedTemplate& one : kTemplates) names.emplace_back(one.name);
  return names;
}

std::string chat_template_of(const std::string& given) {
  const auto found = std::ranges::find(kTemplates, given, &NamedTemplate::name);
  if (found != kTemplates.end()) return found->source;
  if (given.find_first_of("{ \n") == std::string::npos)
    throw Error(fmt::format("--chat-template: '{}' is no template, and none of {}", given,
                            fmt::join(chat_template_names(), ", ")));
  return given;
}

}  // namespace sx::cli
