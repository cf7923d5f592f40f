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
"$program" generate -m tiny.gguf -p Hi -n 3 -q -ctk q8_0 -ctv q4_0 -ngl 0 -fa on >/dev/null || fail "llama.cpp's spellings"

# What a start finds out is kept where it is said, and changes no byte.
speculate() { "$program" generate -m tiny.gguf -md tiny.gguf --spec specextend -p "Hello there" -n 12 --ignore-eos -q | sha256sum; }
for run in first second; do equal "$run start with a cache" "$(SPECEXTEND_CACHE=kept speculate)" "$first"; done
[ -n "$(ls kept)" ] || fail "nothing was kept"
equal "start without a cache" "$(SPECEXTEND_CACHE=off XDG_CACHE_HOME=$PWD/none speculate)" "$first"
[ ! -e none ] || fail "SPECEXTEND_CACHE=off keeps something"
XDG_CACHE_HOME=$PWD/some SPECEXTEND_CACHE="" speculate >/dev/null
[ -n "$(ls some/specextend/startup)" ] || fail "nothing was kept in the user's folder"

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
refuse "broken template of the model" "chat template of 'odd'" generate -m odd -p Hi --chat
refuse "a vocabulary alone" "vocab.gguf" generate -m vocab.gguf -p Hi
refuse "missing file" "absent.gguf" generate -m absent.gguf -p Hi
refuse "not a model" "prompt.txt" generate -m prompt.txt -p Hi
# Weights that are no numbers, and weights whose logits are none.
"$make_tiny" nan.gguf --nan && "$make_tiny" huge.gguf --huge || fail "broken models"
refuse "NaN in a norm" "'blk.1.ffn_norm.weight' holds a NaN" generate -m nan.gguf -p Hi -n 3
refuse "NaN in a norm" "'blk.1.ffn_norm.weight' holds a NaN" perplexity -m nan.gguf -f text.txt -c 64
refuse "infinite logits" "logits for the token at position 2 are" generate -m huge.gguf -p Hi -n 3
refuse "infinite logits, sampled" "logits for the token at position 2 are" generate -m huge.gguf -p Hi -n 3 --temp 1
refuse "infinite logits, perplexity" "logits for the token at position 33 are" perplexity -m huge.gguf -f text.txt -c 64 -q
refuse "infinite logits, verify-lossless" "logits for the token at position 2 are" verify-lossless -m huge.gguf --spec suffix -p Hi -n 3
head -c 3000 tiny.gguf >cut.gguf
refuse "truncated model" "cut.gguf" generate -m cut.gguf -p Hi
refuse "no prompt" "prompt" generate -m tiny.gguf
refuse "missing prompt file" "nowhere.txt" generate -m tiny.gguf -f nowhere.txt
refuse "context overflow" "context" generate -m tiny.gguf -f text.txt -c 16
refuse "bad temperature" "temperature" generate -m tiny.gguf -p Hi --temp -1
refuse "bad KV type" "q9" generate -m tiny.gguf -p Hi --kv-type q9
refuse "bad type of values" "q9" generate -m tiny.gguf -p Hi --ctv q9
refuse "two types of values" "given already" generate -m tiny.gguf -p Hi --kv-type q8_0/q4_0 --ctv q8_0
refuse "bad logit bias" "logit-bias" generate -m tiny.gguf -p Hi --logit-bias nonsense
refuse "unknown flag" "no-such-flag" generate --no-such-flag
refuse "unknown command" "frobnicate" frobnicate
refuse "misspelt flag" "'--sepc'; did you mean --spec?" generate -m tiny.gguf -p Hi --sepc off
refuse "misspelt flag with its value" "'--tempp'; did you mean --temp?" chat --tempp=1
refuse "misspelt command" "did you mean generate?" genrate -p Hi
refuse "misspelt preset" "'sufix'; did you mean suffix?" generate -m tiny.gguf -p Hi --spec sufix
refuse "an argument too many" "'stray'" inspect tiny.gguf stray
refuse "two grammars" "--grammar" generate -m tiny.gguf -p Hi -j '{}' --grammar 'root ::= "a"'
refuse "two grammars in chat" "--grammar" chat -m tiny.gguf --grammar-file prompt.txt --grammar 'root ::= "a"'
refuse "system message without --chat" "--chat" generate -m tiny.gguf -p Hi --system "Be brief."
refuse "system message without --chat" "--chat" explain -m tiny.gguf -p Hi --system "Be brief." -o page.html
refuse "bias of an unknown token" "999999" generate -m tiny.gguf -p Hi -l 999999+1
refuse "bias of a negative token" "-5" generate -m tiny.gguf -p Hi -l -5+1
for bias in 5+nan 5+inf 5-inf; do refuse "bias $bias" "token 5" verify-lossless -m tiny.gguf -p Hi -l $bias -n 2; done
for seed in 18446744073709551616 -1 0x10 1.5 ""; do refuse "seed '$seed'" "18446744073709551615" generate -m tiny.gguf -p Hi -s "$seed"; done
for seed in 0 18446744073709551615; do "$program" generate -m tiny.gguf -p Hi -n 1 -s $seed -q >/dev/null || fail "seed $seed"; done
for value in nan inf -inf; do
  refuse "temperature $value" "temperature" generate -m tiny.gguf -p Hi --temp $value
  refuse "top-p $value" "top_p" generate -m tiny.gguf -p Hi --top-p $value
  refuse "min-p $value" "min_p" generate -m tiny.gguf -p Hi --min-p $value
  refuse "repeat penalty $value" "repeat_penalty" generate -m tiny.gguf -p Hi --repeat-penalty $value
done
refuse "-n below -1" "max_tokens" generate -m tiny.gguf -p Hi -n -2
refuse "-n beyond 2^31" "predict" generate -m tiny.gguf -p Hi -n 99999999999
refuse "negative context" "context" generate -m tiny.gguf -p Hi -c -5
for size in 1 2; do refuse "window of $size" "at least 3" perplexity -m tiny.gguf -f text.txt -c $size -q; done
contains "smallest window" "$("$program" perplexity -m tiny.gguf -f text.txt -c 3 --windows 2 -q)" "2 tokens scored"
refuse "negative window" "-c -7" perplexity -m tiny.gguf -f text.txt -c -7
refuse "no windows" "--windows 0" perplexity -m tiny.gguf -f text.txt -c 64 --windows 0
for command in generate perplexity tokenize verify-lossless; do refuse "$command of a folder" "'folder' is a folder" $command -m tiny.gguf -f folder; done
refuse "grammar from a folder" "is a folder" generate -m tiny.gguf -p Hi --grammar-file folder

# Warnings: on standard error, also when quiet; the text is made all the same.
warn() {  # what, expected words, arguments...; no words: no warning
  local what=$1 words=$2
  shift 2
  "$program" "$@" -q >out.txt 2>err.txt </dev/null || fail "$what: exits with $?"
  if [ -n "$words" ]; then contains "$what" "$(cat err.txt)" "warning: $words"; else equal "$what" "$(cat err.txt)" ""; fi
}
warn "context beyond the trained length" "a context of 2049 tokens" generate -m tiny.gguf -p Hi -n 1 -c 2049
warn "context of the trained length" "" generate -m tiny.gguf -p Hi -n 1 -c 2048
LC_ALL=C sed 's/tokenizer\.chat_template/tokenizer.chat_tempXXXX/' tiny.gguf >bare.gguf
for command in generate verify-lossless; do
  warn "$command --chat without a template" "the model has no chat template; ChatML" $command -m bare.gguf -p Hi -n 1 --chat
done
warn "chat without a template" "the model has no chat template; ChatML" chat -m bare.gguf -p Hi -n 1
echo '{{ messages[0].content }}' >own.jinja
warn "--chat with another template" "" generate -m bare.gguf -p Hi -n 1 --chat --chat-template-file own.jinja
warn "--chat with a template" "" generate -m tiny.gguf -p Hi -n 1 --chat
warn "no --chat" "" generate -m bare.gguf -p Hi -n 1
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
HOME=$folder XDG_CACHE_HOME=$folder refuse "no default model" "python3 " generate -p Hi
script=$(sed -n 's/.*: python3 //p' err.txt)
[ -f "$script" ] || fail "no default model: '$script' is not there"
contains "no default model" "$(cat err.txt)" "-m FILE"

[ "$failures" -eq 0 ] && echo "all checks passed"
exit "$failures"
