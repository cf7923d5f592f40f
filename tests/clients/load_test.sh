#!/usr/bin/env bash
# A short load on a server with a tiny model: load_test.sh PYTHON PROGRAM MAKE_TINY_MODEL FLAGS-OF-load.py...
# First that the check can see: an answer that differs, drafts that cost, and memory that grows must be found.
set -euo pipefail
python="$1" program="$2" make_tiny="$3"
shift 3
bench=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../bench/server" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$make_tiny" "$work/tiny.gguf"

"$python" - "$bench" <<'EOF_PYTHON'
import argparse, sys
sys.path.insert(0, sys.argv[1])
import load
judge = load.Load(None, [], [{"choices": [{"text": "a"}], "tokens": 1}], argparse.Namespace(stall=5))
times = {"silence": 1, "all": 1}
judge.judge(0, {"choices": [{"text": "a"}], "tokens": 1}, times)
assert (judge.errors, judge.answers) == ([], 1)
judge.judge(0, {"choices": [{"text": "b"}], "tokens": 1}, times)
assert (judge.differ, len(judge.errors)) == (1, 1)
judge.judge(0, {"choices": [{"text": "a"}], "tokens": 1}, times | {"silence": 6})
assert len(judge.errors) == 2
part = {"tokens_per_second": 97.1, "per_token_p95": 1.03, "gap_p95": 1}
plain = {"tokens_per_second": 100, "per_token_p95": 1, "gap_p95": 1}
assert load.compare(part, plain, 0.97)[1] == []
assert len(load.compare(part | {"tokens_per_second": 96.9}, plain, 0.97)[1]) == 1
assert len(load.compare(part | {"per_token_p95": 1.04}, plain, 0.97)[1]) == 1
assert load.compare({}, plain, 0)[1] and load.compare(part, plain, 0)[0] == {"speed": 0.971, "per_token_p95": 1.03}
assert load.growth([(t, 100 + t) for t in range(100)], 20)["growth"] > 50
assert load.growth([(t, 100 + min(t, 20)) for t in range(100)], 20)["growth"] == 0
EOF_PYTHON

"$python" "$bench/load.py" --program "$program" "$@" --json "$work/figures" -- \
  -m "$work/tiny.gguf" -c 4000 --parallel 6 --spec magicdec --spec suffix --cache-ram 4 -q

"$python" - "$work/figures" <<'EOF_PYTHON'
import json, sys
figures = json.load(open(sys.argv[1]))
if "parts" in figures:  # --drafts both
    assert [part["drafts"] for part in figures["parts"]] == ["on", "off"] * 2, figures["parts"]
    for kind in ("on", "off"):
        of = figures[kind]
        assert of["answers"] == sum(part["answers"] for part in figures["parts"] if part["drafts"] == kind), of
        assert all(of[name] > 0 for name in ("tokens_per_second", "gap_p95", "per_token_p95")), of
    assert all(figures["on_to_off"].values()), figures["on_to_off"]
EOF_PYTHON
