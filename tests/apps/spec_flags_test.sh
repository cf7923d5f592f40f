#!/usr/bin/env bash
# The flags of speculation from outside: every preset prints the text of plain decoding, llama.cpp's and vLLM's spellings
# mean what they say, and what does not fit together is refused by name. Arguments: the program, the maker of tiny models.
set -u
program=$1 make_tiny=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
failures=0
fail() { echo "FAIL: $*"; failures=$((failures + 1)); }
equal() { [ "$2" = "$3" ] || fail "$1: '$2' is not '$3'"; }
contains() { case "$2" in *"$3"*) ;; *) fail "$1: '$3' is not in: $2" ;; esac; }

"$make_tiny" tiny.gguf && "$make_tiny" mtp.gguf --mtp || exit 1
text() { "$program" generate -m "${model:-tiny.gguf}" -p "A fox, a dog, a fox, a dog, a fox," -n 24 --ignore-eos -q "$@" | sha256sum; }
plain=$(text --spec off) sampled=$(text --spec off --temp 1 -s 5)
equal "without --spec, greedy" "$(text)" "$plain"
equal "without --spec, sampled" "$(text --temp 1 -s 5)" "$sampled"
contains "without --spec auto decides" "$("$program" generate -m tiny.gguf -p "A fox, a dog," -n 8 -q --explain auto 2>&1 >/dev/null)" "there is no model"
[ "$plain" != "$sampled" ] || fail "sampling changes nothing"

"$program" methods >methods.txt || fail "methods exits with $?"
presets=$("$program" methods --json | sed -n 's/.*"name": "\(.*\)",/\1/p')
[ "$(echo "$presets" | wc -l)" -ge 14 ] || fail "presets: $presets"
for preset in $presets; do
  contains "table of methods" "$(cat methods.txt)" "$preset"
  arguments=(--spec "$preset")
  if [ "$preset" = self-exit ]; then arguments=(--spec self-exit:exit=1); fi
  case $preset in *mtp) model=mtp.gguf ;; *) model=tiny.gguf ;; esac  # the same layers, and a block
  if grep -q "^$preset  .*-md FILE" methods.txt; then arguments+=(-md tiny.gguf); fi
  equal "$preset, greedy" "$(text "${arguments[@]}")" "$plain"
  equal "$preset, sampled" "$(text "${arguments[@]}" --temp 1 -s 5)" "$sampled"
done

# llama.cpp's spellings.
equal "draft-mtp" "$(model=mtp.gguf text --spec-type draft-mtp)" "$plain"
equal "draft-mtp and a look-up" "$(model=mtp.gguf text --spec-type draft-mtp,ngram-mod)" "$plain"
equal "mtp by JSON" "$(model=mtp.gguf text --speculative-config '{"method": "mtp", "num_speculative_tokens": 3}')" "$plain"
model=tiny.gguf
equal "-md alone" "$(text -md tiny.gguf)" "$plain"
equal "llama.cpp's flags" "$(text -md tiny.gguf --draft-max 8 --draft-min 1 --draft-p-min 0.5 -ngld 9 -devd x -cd 99 -td 2 \
  -ctkd f16 -ctvd q8_0)" "$plain"
for type in none ngram-simple ngram-mod ngram-cache; do equal "--spec-type $type" "$(text --spec-type $type)" "$plain"; done
equal "--spec-type list" "$(text --spec-type draft,ngram-mod -md tiny.gguf)" "$plain"
# vLLM's configuration.
equal "suffix by JSON" "$(text --speculative-config '{"method": "suffix", "num_speculative_tokens": 8}')" "$plain"
equal "model by JSON" "$(text --speculative-config '{"model": "tiny.gguf", "num_speculative_tokens": 3}')" "$plain"

value() { "$program" methods "${@:2}" --json | sed -n "s/^  \"$1\": \"\(.*\)\",\{0,1\}$/\1/p"; }
equal "chain length" "$(value depth sd:nodes=9)" 9
equal "--spec as NAME" "$(value depth --spec sd:nodes=9)" 9
equal "smaller depth" "$(value depth sd:depth=4,nodes=9)" 4
equal "--draft-max" "$(value nodes sd --draft-max 7)" 7
equal "order of keys, a list" "$(value nodes sd:widths=2,3,tree=static)" 8
equal "a list of paths" "$(value nodes "medusa:paths=0;0,0;1,depth=2")" 3
equal "allow-lossy" "$(value allow-lossy sd:allow-lossy=on)" on
equal "environment" "$(SPECEXTEND_SPEC=suffix:cost-model=off LLAMA_ARG_DRAFT_MAX=5 text)" "$plain"
contains "environment is read" "$(SPECEXTEND_SPEC=magic "$program" generate -m tiny.gguf -p Hi 2>&1)" "'magic'"
contains "environment is read" "$(LLAMA_ARG_DRAFT_MAX=600 "$program" generate -m tiny.gguf -p Hi --spec suffix 2>&1)" "1 to 511"
equal "-ctvd alone" "$(value draft-kv-type sd -ctvd q8_0)" /q8_0
equal "-ctkd and -ctvd" "$(value draft-kv-type sd -ctkd q8_0 -ctvd q4_0)" q8_0/q4_0
equal "list of types" "$(value fuse-index draft,ngram-simple)" ngram
equal "JSON, then flags" "$(value nodes --speculative-config '{"method": "ngram"}' --draft-max 7)" 7
contains "keys of a preset" "$("$program" methods specexec)" "  beams "


refuse() {  # what, expected words, arguments...
  local what=$1 words=$2
  shift 2
  if "$program" generate -m tiny.gguf -p Hi -n 2 -q "$@" >out.txt 2>err.txt </dev/null; then fail "$what: no error"; fi
  contains "$what" "$(cat err.txt out.txt)" "$words"
}
refuse "unknown preset" "'magic'. There are off, sd, " --spec magic
refuse "misspelt preset" "'sufix'; did you mean suffix? There are off, sd, " --spec sufix
refuse "unknown key" "there is no key 'color'. There are drafter, " --spec suffix:color=red
refuse "misspelt key" "there is no key 'node'; did you mean nodes? There are drafter, " --spec suffix:node=8
refuse "renamed key" "there is no key 'price'; it is now cost-model. There are drafter, " --spec suffix:price=off
refuse "key without a value" "'8' is not key=value" --spec suffix:8
refuse "nothing behind the colon" "key=value is expected" --spec suffix:
refuse "key given twice" "nodes is given twice" --spec suffix:nodes=3,nodes=4
refuse "key and flag" "key nodes is also given by a flag" --spec suffix:nodes=3 --draft-max 4
refuse "two presets" "this command runs one preset" --spec suffix --spec ngram
refuse "no draft model" "-md FILE" --spec sd
refuse "useless draft model" "tiny.gguf" --spec suffix -md tiny.gguf
refuse "absent draft model" "absent.gguf" --spec sd -md absent.gguf
refuse "value out of range" "1 to 511" --spec suffix:nodes=512
refuse "key without a preset" "nodes" --draft-max 4
refuse "no MTP block" "no MTP block" --spec-type draft-mtp
refuse "no head" "-md FILE" --spec-type draft-eagle3
refuse "list without an MTP block" "no MTP block" --spec-type draft-mtp,ngram-mod
refuse "no block drafter" "-md FILE" --spec-type draft-dflash
refuse "list of one kind" "ngram-mod" --spec-type ngram-mod,ngram-simple
refuse "rule and drafter" "block" --spec suffix:accept=block
refuse "lossy rule" "allow-lossy=on" --spec ngram:accept=typical
refuse "two types of values" "given twice" -md tiny.gguf -ctkd f16/q4_0 -ctvd q8_0
refuse "preset and JSON" "exclude" --spec suffix --speculative-config '{"method": "suffix"}'
refuse "bad JSON" "column" --speculative-config '{"method" "suffix"}'
refuse "JSON of a head" "mlp_speculator" --speculative-config '{"method": "mlp_speculator"}'
refuse "JSON of absent heads" "-md FILE" --speculative-config '{"method": "medusa"}'
refuse "gaps in a tree" "2 but not 1" -md tiny.gguf --spec 'medusa:paths=0;2,accept=no-replacement'
text --spec ngram:accept=typical,allow-lossy=on >/dev/null || fail "lossy rule with consent"

# Rules that keep the distribution: a text that differs is no error and is not called one; where bytes are promised they are compared.
compare() {  # keys, arguments...
  local keys=$1
  shift
  "$program" generate -m tiny.gguf -p "A fox, a dog," -n 40 --ignore-eos -md tiny.gguf --spec "sd:cost-model=off,$keys" --compare "$@" 2>&1 >/dev/null
}
said=$(compare accept=block --temp 3 --top-k 0 --top-p 1 --min-p 0 -s 5) || fail "--compare with rule block exits with $?: $said"
contains "--compare, block" "$said" "rule block keeps the distribution, not the bytes"
case "$said" in *report*) fail "--compare, block: $said" ;; esac
contains "--compare, block, greedy" "$(compare accept=block)" "equal"
contains "--compare, match" "$(compare accept=match --temp 3 --top-k 0 --top-p 1 --min-p 0 -s 5)" "equal"
said=$(compare accept=typical,allow-lossy=on --temp 3 --top-k 0 --top-p 1 --min-p 0 -s 5) || fail "--compare with rule typical exits with $?: $said"
contains "--compare, typical" "$said" "rule typical changes the text"
said=$("$program" explain -m tiny.gguf -p "A fox, a dog," -n 40 --ignore-eos -md tiny.gguf --spec sd:cost-model=off,accept=block --compare \
  --temp 3 --top-k 0 --top-p 1 --min-p 0 -s 5 -q --json -) || fail "explain --compare with rule block exits with $?"
contains "explain --compare, block" "$said" '"difference":"rule block keeps the distribution, not the bytes'
verify() { "$program" verify-lossless -m tiny.gguf -p "A fox, a dog," -n 8 -md tiny.gguf "$@" 2>&1; }
for rule in block chain; do
  said=$(verify --spec sd:accept=$rule --temp 1) && fail "verify-lossless, accept=$rule is taken"
  contains "verify-lossless, $rule" "$said" "accept=$rule: sampled, this rule keeps the distribution"
  verify --spec sd:accept=$rule --all-settings >/dev/null && fail "verify-lossless, accept=$rule --all-settings is taken"
  verify --spec sd:accept=$rule >/dev/null || fail "verify-lossless, accept=$rule, greedy"
done
for flags in "--spec sd:accept=block" "--spec sd:accept=match --spec suffix --spec opt-tree:accept=specinfer,tree=static"; do
  # shellcheck disable=SC2086
  said=$("$program" serve -m tiny.gguf --port 0 -md tiny.gguf $flags 2>&1) && fail "serve $flags is taken"
  contains "serve $flags" "$said" "keeps the distribution of sampled texts but not their bytes"
  contains "serve $flags" "$said" "take match"
done

# Flags of earlier versions: the error says the new spelling.
refuse "old flag" "--spec-depth 5 is now --spec NAME:depth=5" --spec suffix --spec-depth 5
refuse "old flag with =" "--spec-depth 5 is now --spec NAME:depth=5" --spec suffix --spec-depth=5
refuse "old flag, renamed key" "--spec-price off is now --spec NAME:cost-model=off" --spec suffix --spec-price off
refuse "old --accept" "--accept block is now --spec NAME:accept=block" -md tiny.gguf --accept block
refuse "old --allow-lossy" "--allow-lossy is now --spec NAME:allow-lossy=on" --spec suffix --allow-lossy
contains "old --more-spec" "$("$program" serve -m tiny.gguf --port 0 --more-spec ngram:nodes=8 2>&1)" "--more-spec ngram:nodes=8 is now a further --spec ngram:nodes=8"

[ "$failures" -eq 0 ] && echo "all checks passed"
exit "$failures"
