#!/usr/bin/env bash
# `specextend explain` from outside: the page and the JSON of a real generation agree with it and with each other.
# Arguments: the program, the maker of tiny models, Python.
set -u
program=$1 make_tiny=$2 python=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
failures=0
fail() { echo "FAIL: $*"; failures=$((failures + 1)); }
refuse() {  # what, expected words, arguments...
  local what=$1 words=$2
  shift 2
  if "$program" explain "$@" >out.txt 2>err.txt </dev/null; then fail "$what: no error"; fi
  case "$(cat err.txt out.txt)" in *"$words"*) ;; *) fail "$what: '$words' is not in: $(cat err.txt out.txt)" ;; esac
}
"$make_tiny" tiny.gguf || exit 1
for _ in $(seq 40); do printf 'A <b>fox</b> & a dog, a w\303\266lf, a fox, '; done >document.txt

cat >check.py <<'PY'
import html.parser, json, sys

class Page(html.parser.HTMLParser):
    """The shown text, by element: what the reader sees must be what was generated."""
    def __init__(self):
        super().__init__()
        self.stack, self.text, self.rounds, self.chunks, self.scripts, self.tags = [], "", 0, [], 0, set()
    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.add(tag)
        if tag not in ("meta", "input", "path", "polyline"):
            self.stack.append((tag, attrs))
        self.rounds += attrs.get("class") == "round"
        self.scripts += tag == "script"
        if tag == "li" and any(a.get("id") == "chunks" for _, a in self.stack):
            self.chunks.append("")
    def handle_endtag(self, tag):
        if tag not in ("path", "polyline"):
            assert self.stack.pop()[0] == tag, tag
    def handle_data(self, data):
        classes = [a.get("class", "") for _, a in self.stack]
        if "text card" in classes and self.stack[-1][0] != "s":
            self.text += data
        elif self.stack and self.stack[-1][0] == "li" and self.chunks:
            self.chunks[-1] += data

plain, page_file, json_file, kind = sys.argv[1:]
data = json.load(open(json_file, encoding="utf-8"))
page = Page()
page.feed(open(page_file, encoding="utf-8", newline="").read())
assert not page.stack and page.scripts == 1
summary, rounds = data["summary"], data["rounds"]
text = open(plain, encoding="utf-8", newline="").read()
assert data["text"] + "\n" == text, (data["text"], text)
assert "".join(data["pieces"]) == data["text"]
controls = {c: chr(0x2400 + c) for c in range(32) if c not in (9, 10)} | {127: "\u2421"}
assert page.text == data["text"].translate(controls), (page.text, data["text"])
assert page.rounds == len(rounds) == summary["rounds"] > 0
assert sum(r["made"] for r in rounds) == len(data["tokens"]) == len(data["pieces"]) == summary["tokens"]
for name in ("drafted", "verified", "accepted"):
    assert sum(r[name] for r in rounds) == summary[name], name
at = 0
for r in rounds:
    assert r["first"] == at and len(r["tokens"]) == len(r["parents"]) == len(r["texts"]) == r["verified"] + 1
    assert all(p < n for n, p in enumerate(r["parents"])) and len(r["path"]) == r["accepted"] + 1
    accepted = [r["tokens"][n] for n in r["path"][1:]]
    made = data["tokens"][at:at + r["made"]]
    assert made[:len(accepted)] == accepted[:len(made)], "the path is not the text"
    if at:
        assert r["tokens"][0] == data["tokens"][at - 1], "the pending token is not the last one"
    at += r["made"]
if kind == "model":
    assert summary["accepted"] > 0, "a model does not guess itself"
if kind == "chunks":
    size, cells = data["chunks"]["tokens"], summary["prompt_tokens"] + summary["tokens"]
    assert len(data["refreshes"]) > 1 and summary["refreshes"] == data["refreshes"][-1]["number"]
    for r in data["refreshes"]:
        flat = [end for pair in r["ranges"] for end in pair]
        assert flat == sorted(set(flat)) and flat[-1] == r["length"] <= cells
        assert sum(b - a for a, b in r["ranges"]) < r["length"], "nothing was left out"
    assert len(page.chunks) == len(data["chunks"]["texts"]) == -(-cells // size)
    assert "<b>fox</b>" in "".join(page.chunks)
    assert summary["equal_to_plain"] is True and summary["plain_ms_per_token"] > 0
else:
    assert data["refreshes"] == [] and page.chunks == []
PY

page=(-o page.html --json data.json)
draft=(--spec eagle2-tree:cost-model=off -md tiny.gguf)
common=(-m tiny.gguf -f document.txt -n 40 --ignore-eos -q)
"$program" generate "${common[@]}" >plain.txt || fail "generate"
check() { "$python" check.py plain.txt page.html data.json "$1" || fail "$2"; }
"$program" explain "${common[@]}" --spec suffix:cost-model=off "${page[@]}" || fail "suffix"
check whole "suffix"
"$program" explain "${common[@]}" "${draft[@]}" "${page[@]}" || fail "a draft model"
check model "a draft model"
"$program" explain "${common[@]}" -md tiny.gguf "${page[@]}" --compare \
  --spec eagle2-tree:cost-model=off,cache=retrieval,budget=512,chunk=8,recent=16,sink=4,interval=2 || fail "retrieval"
check chunks "retrieval"
# Tokens that are parts of characters, and bytes that are none.
for seed in 10 18 22 23 27; do
  dice=(-m tiny.gguf -p "A fox" -n 200 --ignore-eos --temp 1.5 -s "$seed" -q)
  "$program" generate "${dice[@]}" >plain.txt || fail "generate, seed $seed"
  "$program" explain "${dice[@]}" "${page[@]}" || fail "seed $seed"
  check whole "seed $seed"
done
"$program" explain "${common[@]}" -o - >page.html 2>err.txt || fail "the page on standard output"
[ "$(head -c 15 page.html)" = '<!DOCTYPE html>' ] || fail "standard output does not begin with the page"
"$program" explain --help >help.txt || fail "--help"
grep -q -- --compare help.txt || fail "--help does not name --compare"

refuse "no output" "-o PAGE.html" "${common[@]}"
refuse "two on standard output" "only one" "${common[@]}" -o - --json -
refuse "no prompt" "-p TEXT" -m tiny.gguf -o page.html
refuse "a folder that is not there" "absent/page.html" "${common[@]}" -o absent/page.html

[ "$failures" -eq 0 ] && echo "all checks passed"
exit "$failures"
