#!/usr/bin/env bash
# Drafts from outside: quantised, shipped by tools/ship_drafts.py, listed, found and used without -md; the text is that
# of plain decoding. Arguments: the program, the maker of tiny models, Python, the source tree.
set -u
program=$1 make_tiny=$2 python=$3 source=$4
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
failures=0
fail() { echo "FAIL: $*"; failures=$((failures + 1)); }
equal() { [ "$2" = "$3" ] || fail "$1: '$2' is not '$3'"; }
contains() { case "$2" in *"$3"*) ;; *) fail "$1: '$3' is not in: $2" ;; esac; }
refuse() {  # what, expected words, arguments...
  local what=$1 words=$2
  shift 2
  if "$program" "$@" >out.txt 2>err.txt </dev/null; then fail "$what: no error"; fi
  contains "$what" "$(cat err.txt out.txt)" "$words"
}
export SPECEXTEND_MODELS=$folder/models

"$make_tiny" tiny.gguf && "$make_tiny" trained/small --hf && "$make_tiny" trained/eagle3 --eagle3 &&
  "$make_tiny" trained/medusa --medusa || exit 1
rm trained/small/tokenizer*.json

# Heads: what they are, before and after.
contains "inspect a head" "$("$program" inspect trained/eagle3)" "EAGLE-3 head"
"$program" quantize trained/eagle3 head Q8_0 --output Q4_0 --tensor-type fc.weight=BF16 --round nearest 2>err.txt ||
  fail "quantize a head"
contains "report" "$(cat err.txt)" "Q4_0 1"
contains "inspect a quantised head" "$("$program" inspect head --json)" '"draft_vocab": 160'
contains "a single tensor" "$("$program" inspect head --tensors | grep 'fc.weight')" "BF16"
contains "inspect Medusa" "$("$program" inspect trained/medusa)" "2 heads"
refuse "a head as GGUF" "as a folder" quantize trained/eagle3 x.gguf Q8_0
refuse "not a pair" "NAME=TYPE" quantize trained/eagle3 x Q8_0 --tensor-type fc.weight
refuse "an unknown rounding" "nearest" quantize trained/eagle3 x Q8_0 --round up
refuse "a head's vocabulary" "no vocabulary" quantize trained/eagle3 x Q8_0 --vocabulary tiny.gguf
# A model's vocabulary from its target.
"$program" convert trained/small mute.gguf -q || fail "convert without a vocabulary"
contains "no vocabulary" "$("$program" inspect mute.gguf)" "0 tokens"
"$program" convert trained/small full.gguf --vocabulary tiny.gguf -q || fail "convert with a vocabulary"
ids() { "$program" tokenize -m "$1" -p 'Hello there' --ids; }
equal "vocabulary" "$(ids full.gguf)" "$(ids tiny.gguf)"

# Nothing is shipped yet.
contains "no drafts" "$("$program" methods)" "none found"
refuse "no draft" "no shipped draft fits" generate -m tiny.gguf -p Hi --spec sd
ship() { "$python" "$source/tools/ship_drafts.py" trained tiny.gguf --program "$program" --models models --name tiny; }
ship >out.txt 2>err.txt || fail "ship_drafts: $(cat out.txt err.txt)"
contains "cards" "$(cat out.txt)" "its card is missing: models/tiny-small/README.md"
equal "drafts listed" "$("$program" methods --drafts --json | grep -c '"sha256"')" 3
contains "drafts among the methods" "$("$program" methods)" "tiny-eagle3"

text() {
  "$program" generate -m tiny.gguf -p "A fox, a dog, a fox, a dog, a fox," -n 24 --ignore-eos "$@" 2>err.txt | sha256sum
}
plain=$(text --spec off)
equal "without --spec" "$(text)" "$plain"
contains "without --spec the shipped head is opened" "$(cat err.txt)" "draft: $folder/models/tiny-eagle3 (shipped)"
small=tiny-small/draft.gguf
for pair in "sd:$small" "eagle2-tree:$small" eagle2:tiny-eagle3 eagle3:tiny-eagle3 medusa:tiny-medusa; do
  equal "${pair%%:*}" "$(text --spec "${pair%%:*}")" "$plain"
  contains "${pair%%:*}" "$(cat err.txt)" "draft: $folder/models/${pair##*:} (shipped)"
done
text --spec sd -md tiny.gguf >/dev/null
case "$(cat err.txt)" in *shipped*) fail "a given draft is called shipped" ;; esac

# What can draft for a model: what is shipped, what its file has, what is given.
"$make_tiny" mtp.gguf --mtp
info=$("$program" draft-info -m mtp.gguf -n 12 --json) || fail "draft-info exits with $?"
for words in '"kind": "MTP"' '"kind": "EAGLE-3"' '"kind": "Medusa"' '"kind": "model"' '"fits": true' '"tokens_per_pass"' '"advice"'; do
  contains "draft-info" "$info" "$words"
done
contains "draft-info of a head" "$("$program" draft-info -m tiny.gguf -md trained/eagle3 --no-probe)" "specextend-eagle3"
refuse "draft-info of a draft that does not fit" "no: " draft-info -m tiny.gguf -md absent.gguf

# Shipping one again keeps the others; damage is named.
rm -r trained/small trained/medusa
ship >out.txt 2>&1 || fail "ship one again"
equal "drafts listed again" "$("$program" methods --drafts --json | grep -c '"sha256"')" 3
printf x >>models/tiny-small/draft.gguf
refuse "damaged draft" "draft.gguf" generate -m tiny.gguf -p Hi --spec sd
rm models/tiny-small/draft.gguf
refuse "missing draft" "draft.gguf" generate -m tiny.gguf -p Hi --spec sd
echo '{' >models/drafts.json
refuse "damaged list" "drafts.json" generate -m tiny.gguf -p Hi --spec sd
refuse "damaged list, methods" "drafts.json" methods

[ "$failures" -eq 0 ] && echo "all checks passed"
exit "$failures"
