#!/usr/bin/env bash
# Exactness on real weights: every preset on the default model against plain decoding, four sampling settings, a short prompt and
# one whose answer crosses position 1,024. Presets that need a draft model take the target itself. Skipped (77) without the
# model, after what needs none: every draft cache with tiny models, on texts that are longer than its budget.
set -euo pipefail
program=$1 source=$2 make_tiny=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$make_tiny" "$work/tiny.gguf"
"$make_tiny" "$work/eagle3" --eagle3
head -c 420 "$source/LICENSE" > "$work/some.txt"
small=cost-model=off,budget=64,chunk=8,recent=16,interval=2,window=48
verify_tiny() {  # NAME PRESET[,KEY=VALUE...] OPTIONS...
  local name=$1 preset=${2%%,*} keys=${2#"${2%%,*}"}
  shift 2
  "$program" verify-lossless -m "${tiny:-$work/tiny.gguf}" -q --json --all-settings -n 40 -c 700 --ignore-eos --spec "$preset:$small$keys" "$@" \
    -f "$work/some.txt" > "$work/$name.tiny"
}
for preset in specextend streamingllm; do
  verify_tiny "$preset" "$preset" -md "$work/tiny.gguf"
done
verify_tiny specextend-eagle3 specextend-eagle3 -md "$work/eagle3"
for cache in full window streaming retrieval once quest snap prune random; do
  verify_tiny "model-$cache" "opt-tree,cache=$cache,draft-kv-type=q8_0" -md "$work/tiny.gguf"
  verify_tiny "head-$cache" "eagle3,cache=$cache,positions=original" -md "$work/eagle3"
done
for cache in window streaming retrieval prune random; do
  verify_tiny "self-$cache" "magicdec,cache=$cache"
done
"$make_tiny" "$work/mtp.gguf" --mtp
for cache in full window streaming retrieval once quest snap prune random; do
  tiny=$work/mtp.gguf verify_tiny "mtp-$cache" "mtp,cache=$cache"
done
verify_tiny inner-model triforce,inner-budget=40 -md "$work/tiny.gguf"
verify_tiny inner-suffix magicdec,inner=suffix,store=500
verify_tiny all-layers specextend,layers=all -md "$work/tiny.gguf"
python3 - "$work" <<'PY'
import glob, json, sys
rows = [json.loads(line) for path in glob.glob(sys.argv[1] + "/*.tiny") for line in open(path)]
assert len(rows) == 38 * 4, f"{len(rows)} cases"
assert all(r["equal"] for r in rows), [r for r in rows if not r["equal"]]
assert all(r["prompt_tokens"] > 200 and r["tokens"] == 40 for r in rows), "too short to choose from"
accepted = sum(r["spec"]["accepted_tokens"] for r in rows)
assert accepted > 200, f"only {accepted} drafted tokens accepted"
print(f"{len(rows)} cases of draft caches equal, {accepted} drafted tokens accepted")
PY
# What cannot be is refused by name.
if "$program" verify-lossless -m "$work/tiny.gguf" -p a --spec suffix:cache=retrieval 2> "$work/refusal"; then
  exit 1
fi
grep -q "cache is retrieval and suffix" "$work/refusal"

model=${XDG_CACHE_HOME:-$HOME/.cache}/specextend/models/SmolLM2-135M-Instruct.Q4_1.gguf
[ -f "$model" ] || { echo "the default model is not at $model: skipped"; exit 77; }

# About 1,010 tokens of a text that repeats itself in places.
head -c 5120 "$source/LICENSE" > "$work/long.txt"
cases=0
"$program" methods --json > "$work/methods.json"
for preset in $(python3 -c 'import json,sys; print(*[m["name"] for m in json.load(open(sys.argv[1])) if m["name"] != "off" and not m["name"].endswith("mtp")])' "$work/methods.json"); do
  draft=()
  if python3 -c 'import json,sys; sys.exit(0 if [m for m in json.load(open(sys.argv[1])) if m["name"] == sys.argv[2]][0]["needs_draft"] else 1)' "$work/methods.json" "$preset"; then
    draft=(-md "$model")
  fi
  cache=  # smaller than the long prompt
  case $preset in specextend* | streamingllm | magicdec | rapid | triforce) cache=,budget=256,interval=2 ;; esac
  # Odd presets run trees as given, even ones what pays.
  model_cost=$([ $((cases / 8 % 2)) = 0 ] && echo off || echo on)
  "$program" verify-lossless -m "$model" -q --json --all-settings -n 24 -c 1400 --spec "$preset:cost-model=$model_cost,nodes=6$cache" "${draft[@]}" \
    -f "$work/long.txt" \
    -p "The capital of France is Paris. The capital of France is" > "$work/$preset.jsonl"
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
