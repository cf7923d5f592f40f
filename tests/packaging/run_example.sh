#!/usr/bin/env bash
# Runs the example on the default model; 77 (skipped) where the model is not there. The same words twice: the library
# promises output that is reproducible to the byte.
set -euo pipefail
model="${XDG_CACHE_HOME:-$HOME/.cache}/specextend/models/SmolLM2-135M-Instruct.Q4_1.gguf"
if [[ ! -f "$model" ]]; then
  echo "skipped: no default model at $model"
  exit 77
fi
first="$("$1" "$model")"
second="$("$1" "$model")"
echo "$first"
[[ -n "$first" ]] || { echo "no text"; exit 1; }
[[ "$first" == "$second" ]] || { echo "not reproducible: $second"; exit 1; }
if "$1" /nonexistent.gguf 2>/dev/null; then echo "a missing model must be an error"; exit 1; fi
