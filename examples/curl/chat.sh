#!/usr/bin/env bash
# A question and the whole answer: text, usage, and what speculation did. chat.sh [QUESTION]
set -euo pipefail
# shellcheck source=examples/curl/server.sh
source "$(dirname "${BASH_SOURCE[0]}")/server.sh"

question="${1:-Why is the sky blue?}"
body=$(python3 -c 'import json, sys
print(json.dumps({"messages": [{"role": "user", "content": sys.argv[1]}], "max_tokens": 100}))' "$question")
ask /v1/chat/completions -d "$body"
echo
