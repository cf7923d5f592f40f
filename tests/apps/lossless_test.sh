#!/usr/bin/env bash
# The law on real weights: every preset on the default model against plain decoding, four sampling settings, a short prompt and
# one whose answer crosses position 1,024. Presets that need a draft model take the target itself. Skipped (77) without the model.
set -euo pipefail
program=$1 source=$2
model=${XDG_CACHE_HOME:-$HOME/.cache}/specextend/models/SmolLM2-135M-Instruct.Q4_1.gguf
[ -f "$model" ] || { echo "the default model is not at $model: skipped"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# About 1,010 tokens of a text that repeats itself in places.
head -c 5120 "$source/LICENSE" > "$work/long.txt"
cases=0
"$program" methods --json > "$work/methods.json"
for preset in $(python3 -c 'import json,sys; print(*[m["name"] for m in json.load(open(sys.argv[1])) if m["name"] != "off"])' "$work/methods.json"); do
  draft=()
  if python3 -c 'import json,sys; sys.exit(0 if [m for m in json.load(open(sys.argv[1])) if m["name"] == sys.argv[2]][0]["needs_draft"] else 1)' "$work/methods.json" "$preset"; then
    draft=(-md "$model")
  fi
  # Odd presets run trees as given, even ones what pays.
  price=$([ $((cases / 8 % 2)) = 0 ] && echo off || echo on)
  "$program" verify-lossless -m "$model" -q --json --all-settings -n 24 -c 1400 --spec "$preset" "${draft[@]}" --spec-price "$price" --spec-nodes 6 \
    -f "$work/long.txt" -p "The capital of France is Paris. The capital of France is" > "$work/$preset.jsonl"
  cases=$((cases + $(wc -l < "$work/$preset.jsonl")))
done
python3 - "$work" <<'PY'
import glob, json, sys
rows = [json.loads(line) for path in glob.glob(sys.argv[1] + "/*.jsonl") for line in open(path)]
assert len(rows) >= 96, f"only {len(rows)} cases"
assert all(r["equal"] for r in rows), [r for r in rows if not r["equal"]]
assert any(r["prompt_tokens"] < 1024 < r["prompt_tokens"] + r["tokens"] for r in rows), "no answer crosses 1,024"
accepted = sum(r["spec"]["accepted_tokens"] for r in rows)
assert accepted > 500, f"only {accepted} drafted tokens accepted"
print(f"{len(rows)} cases equal, {accepted} drafted tokens accepted")
PY
