#!/usr/bin/env bash
# An answer that fits a JSON schema, whatever the model would rather say.
set -euo pipefail
# shellcheck source=examples/curl/server.sh
source "$(dirname "${BASH_SOURCE[0]}")/server.sh"

ask /v1/chat/completions -d '{
  "messages": [{"role": "user", "content": "Describe an apple."}],
  "max_tokens": 200,
  "response_format": {"type": "json_schema", "json_schema": {"name": "fruit", "schema": {
    "type": "object",
    "properties": {
      "colour": {"enum": ["red", "green", "yellow"]},
      "taste": {"type": "string", "maxLength": 20},
      "ripe": {"type": "boolean"}
    },
    "required": ["colour", "taste", "ripe"],
    "additionalProperties": false
  }}}
}'
echo
