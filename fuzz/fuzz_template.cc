// Parses arbitrary bytes as a template and renders it with a small conversation and small limits: whatever the bytes,
// the outcome is a text or sx::Error, within bounded time, memory and stack.
#include <cstddef>
#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto context = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "Sei nett. 🎉"},
                 {"role": "user", "content": [{"type": "text", "text": "hi <b>"}]},
                 {"role": "assistant", "content": null, "tool_calls": [{"type": "function", "id": "a1",
                  "function": {"name": "f", "arguments": {"x": 1.5, "y": [true, null]}}}]},
                 {"role": "tool", "name": "f", "content": "42\n"}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters":
              {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "x": 5, "y": -2.5, "text": "a b\tc",
    "list": [3, 1, 2], "dict": {"b": 1, "a": {"k": [1, 2]}}, "none_value": null})");
  sx::jinja::RenderLimits limits;
  limits.max_output_bytes = 1 << 16;
  limits.max_steps = 100'000;
  limits.max_depth = 50;
  limits.max_memory_bytes = 8 << 20;
  sx::jinja::RenderSettings settings;
  settings.now = 1'700'000'000;
  try {
    const std::string source(reinterpret_cast<const char*>(data), size);
    const auto parsed = sx::jinja::Template::parse(source, "fuzz");
    const std::string out = parsed.render(context, limits, settings);
    if (out.size() > limits.max_output_bytes) __builtin_trap();
  } catch (const sx::Error&) {}
  return 0;
}
