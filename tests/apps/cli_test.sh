#!/usr/bin/env bash
# The program as a person or a script meets it. Arguments: the program, the maker of tiny models.
set -u
program=$1 make_tiny=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
failures=0
fail() { echo "FAIL: $*"; failures=$((failures + 1)); }
equal() { [ "$2" = "$3" ] || fail "$1: '$2' is not '$3'"; }
contains() { case "$2" in *"$3"*) ;; *) fail "$1: '$3' is not in: $2" ;; esac; }

"$make_tiny" tiny.gguf || exit 1
"$make_tiny" folder --hf || exit 1

# Text and nothing else on standard output; the table on standard error.
"$program" generate -m tiny.gguf -p "Hello there" -n 12 --ignore-eos >out.txt 2>err.txt || fail "generate exits with $?"
contains "closing table" "$(cat err.txt)" "prefill"
contains "closing table" "$(cat err.txt)" "tok/s"
[ -s out.txt ] || fail "generate printed no text"
first=$(sha256sum <out.txt)
for threads in 1 2 3; do
  equal "same bytes with $threads threads" "$("$program" generate -m tiny.gguf -p "Hello there" -n 12 --ignore-eos -t $threads -q 2>err.txt | sha256sum)" "$first"
  equal "quiet is quiet" "$(cat err.txt)" ""
done
printf 'Hello there' >prompt.txt
equal "prompt from a file" "$("$program" generate -m tiny.gguf -f prompt.txt -n 12 --ignore-eos -q | sha256sum)" "$first"
equal "prompt from standard input" "$("$program" generate -m tiny.gguf -f - -n 12 --ignore-eos -q <prompt.txt | sha256sum)" "$first"
equal "sampling is reproducible" "$("$program" generate -m tiny.gguf -p Hi -n 20 --temp 1.5 -s 7 --ignore-eos -q | sha256sum)" \
  "$("$program" generate -m tiny.gguf -p Hi -n 20 --temp 1.5 -s 7 --ignore-eos -q -b 3 -t 1 | sha256sum)"
contains "JSON output" "$("$program" generate -m tiny.gguf -p Hi -n 3 --ignore-eos -q --json)" '"finish_reason":"length"'
"$program" generate -m folder -p Hi -n 3 -q >/dev/null || fail "generate from a Hugging Face folder"
"$program" generate -m tiny.gguf -p Hi -n 3 -q -ctk q8_0 -ngl 0 -fa on >/dev/null || fail "llama.cpp's spellings"

# Round trip through the tokenizer.
ids=$("$program" tokenize -m tiny.gguf -p "Hello, Wörld" --ids --no-bos)
equal "tokenize and back" "$("$program" tokenize -m tiny.gguf -p "$ids" --decode)" "Hello, Wörld"

contains "inspect" "$("$program" inspect tiny.gguf)" "llama"
contains "inspect JSON" "$("$program" inspect tiny.gguf --json -c 1024)" '"kv_bytes"'
contains "bench table" "$("$program" bench -m tiny.gguf -p 16 -n 4 -d 0,32 --rows 2 -r 1 -q --no-peaks)" "tg4 @ d32"
contains "bench JSON" "$("$program" bench -m tiny.gguf -p 16 -n 0 -r 1 -q --no-peaks -o jsonl)" '"test":"pp16"'
contains "bench tells its threads" "$("$program" bench -m tiny.gguf -p 4 -n 0 -r 1 -q --no-peaks -t 1)" "threads: 1 (asked for)"
contains "bench caps its threads" "$("$program" bench -m tiny.gguf -p 4 -n 0 -r 1 -q --no-peaks -t 900)" "900 asked for, $(nproc) CPU"
seq 1 400 >text.txt
# A comparison counts everything the user waits for, and says what text it was made on.
"$program" generate -m tiny.gguf -f text.txt -n 24 --ignore-eos --spec sd -md tiny.gguf --compare --json >compared.json 2>compared.txt || fail "compare"
python3 - compared.json <<'PY' || fail "compare: JSON"
import json, sys
r = json.load(open(sys.argv[1]))
t, p, s = r["timings"], r["plain"]["timings"], r["speedup"]
assert r["plain"]["equal"] and p["cache_n"] == 0 and p["prompt_n"] == t["prompt_n"] > 100, (t, p)
whole = lambda x: x["prompt_ms"] + x["draft_prompt_ms"] + x["predicted_ms"]
assert abs(s["whole_answer"] - whole(p) / whole(t)) < 1e-6 * s["whole_answer"], s
assert abs(s["decode_only"] - p["predicted_ms"] / t["predicted_ms"]) < 1e-6 * s["decode_only"], s
assert t["startup_ms"] > 0 and 0 < r["distinct_8grams"] <= 1
PY
for words in "whole answer" "draft reads the prompt" "decode only" "distinct 8-grams" "start-up" "equal"; do contains "compare" "$(cat compared.txt)" "$words"; done
"$program" verify-lossless -m tiny.gguf -p Hi -p "One two one two" -n 12 --spec suffix --json -q >verified.json || fail "verify-lossless"
contains "verify-lossless JSON" "$(cat verified.json)" '"speedup":{"whole_answer":'
contains "verify-lossless JSON" "$(cat verified.json)" '"distinct_8grams":'
contains "batches" "$("$program" verify-lossless -m tiny.gguf -p Hi -p "One two one two" -n 12 --spec suffix --batch 3 --repetitions 1 -q)" "batch of 3"
contains "batches are equal" "$("$program" verify-lossless -m tiny.gguf -p Hi -n 12 --spec suffix --batch 2 --repetitions 1 -q --json)" '"equal":true'
contains "perplexity" "$("$program" perplexity -m tiny.gguf -f text.txt -c 64 --windows 3 -q)" "perplexity"
contains "chat" "$(printf 'Hi\nAnd again\n' | "$program" chat -m tiny.gguf -n 5 --ignore-eos 2>&1 >/dev/null)" "from the cache"
for command in "" generate chat bench perplexity inspect tokenize; do
  # shellcheck disable=SC2086
  "$program" $command --help >help.txt || fail "--help of '$command'"
  [ -s help.txt ] || fail "--help of '$command' is empty"
done

# Errors: exit code not 0, and the culprit named.
refuse() {  # what, expected words, arguments...
  local what=$1 words=$2
  shift 2
  if "$program" "$@" >out.txt 2>err.txt </dev/null; then fail "$what: no error"; fi
  contains "$what" "$(cat err.txt out.txt)" "$words"
}
refuse "missing file" "absent.gguf" generate -m absent.gguf -p Hi
refuse "not a model" "prompt.txt" generate -m prompt.txt -p Hi
head -c 3000 tiny.gguf >cut.gguf
refuse "truncated model" "cut.gguf" generate -m cut.gguf -p Hi
refuse "no prompt" "prompt" generate -m tiny.gguf
refuse "missing prompt file" "nowhere.txt" generate -m tiny.gguf -f nowhere.txt
refuse "context overflow" "context" generate -m tiny.gguf -f text.txt -c 16
refuse "bad temperature" "temperature" generate -m tiny.gguf -p Hi --temp -1
refuse "bad KV type" "q9" generate -m tiny.gguf -p Hi --kv-type q9
refuse "bad logit bias" "logit-bias" generate -m tiny.gguf -p Hi --logit-bias nonsense
refuse "unknown flag" "no-such-flag" generate --no-such-flag
refuse "unknown command" "frobnicate" frobnicate
refuse "bad ids" "JSON" tokenize -m tiny.gguf -p "1,2" --decode
refuse "bad template" "broken.jinja" generate -m tiny.gguf -p Hi --chat --chat-template-file broken.jinja
echo '{% if %}' >broken.jinja
refuse "broken template" "template" generate -m tiny.gguf -p Hi --chat --chat-template-file broken.jinja
# Nobody reads: ends by itself, and soon.
timeout 20 "$program" generate -m tiny.gguf -p Hi -n 100000 -c 2000 --ignore-eos -q | head -c 1 >/dev/null
[ "${PIPESTATUS[0]}" -ne 124 ] || fail "goes on when nobody reads"
if [ -e /dev/full ]; then
  if "$program" generate -m tiny.gguf -p Hi -n 3 --ignore-eos -q >/dev/full 2>err.txt; then fail "disk full: no error"; fi
  contains "disk full" "$(cat err.txt)" "standard output"
fi
HOME=$folder XDG_CACHE_HOME=$folder refuse "no default model" "demo" generate -p Hi

[ "$failures" -eq 0 ] && echo "all checks passed"
exit "$failures"
