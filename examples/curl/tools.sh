#!/usr/bin/env bash
# A model that must call a function; the answer has "tool_calls" with the arguments as JSON.
set -euo pipefail
# shellcheck source=examples/curl/server.sh
source "$(dirname "${BASH_SOURCE[0]}")/server.sh"

ask /v1/chat/completions -d '{
  "messages": [{"role": "user", "content": "How is the weather in Oslo?"}],
  "max_tokens": 200,
  "tool_choice": "required",
  "tools": [{"type": "function", "function": {
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {
      "type": "object",
      "properties": {"city": {"type": "string", "maxLength": 30}, "unit": {"enum": ["celsius", "fahrenheit"]}},
      "required": ["city", "unit"],
      "additionalProperties": false
    }
  }}]
}'
echo
