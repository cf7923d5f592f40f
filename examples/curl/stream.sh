#!/usr/bin/env bash
# The same as a stream of events, with the counts at the end, and plainly: "speculate" changes the speed, never the text.
set -euo pipefail
# shellcheck source=examples/curl/server.sh
source "$(dirname "${BASH_SOURCE[0]}")/server.sh"

for speculate in true false; do
  echo "speculate: $speculate"
  ask /v1/chat/completions -d '{
    "messages": [{"role": "user", "content": "Count from one to ten."}],
    "max_tokens": 60, "temperature": 0, "speculate": '"$speculate"',
    "stream": true, "stream_options": {"include_usage": true}
  }'
done
