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

# A vocabulary alone, of an architecture nobody knows: to be looked at, not to be run.
"$make_tiny" vocab.gguf --vocabulary || exit 1
equal "tokenize without weights" "$("$program" tokenize -m vocab.gguf -p "Hello, Wörld" --ids --no-bos)" "$ids"
equal "one line on what is missing" "$("$program" inspect vocab.gguf | grep -c "not supported")" 1
contains "inspect without weights" "$("$program" inspect vocab.gguf)" "abacus"
contains "inspect without weights, JSON" "$("$program" inspect vocab.gguf --json -c 100)" '"unsupported"'
# A template that does not parse stops conversations only.
cp -r folder odd && echo '{% if %}' >odd/chat_template.jinja
equal "tokenize beside a broken template" "$("$program" tokenize -m odd -p "Hello, Wörld" --ids --no-bos 2>err.txt)" "$ids"
contains "its warning" "$(cat err.txt)" "chat template"
equal "generate beside a broken template" "$("$program" generate -m odd -p Hi -n 5 -q)" "$("$program" generate -m folder -p Hi -n 5 -q)"
contains "inspect JSON" "$("$program" inspect tiny.gguf --json -c 1024)" '"kv_bytes"'
contains "bench table" "$("$program" bench -m tiny.gguf -p 16 -n 4 -d 0,32 --rows 2 -r 1 -q --no-peaks)" "tg4 @ d32"
contains "bench JSON" "$("$program" bench -m tiny.gguf -p 16 -n 0 -r 1 -q --no-peaks -o jsonl)" '"test":"pp16"'
seq 1 400 >text.txt
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
refuse "broken template of the model" "chat template of 'odd'" generate -m odd -p Hi --chat
refuse "a vocabulary alone" "vocab.gguf" generate -m vocab.gguf -p Hi
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
