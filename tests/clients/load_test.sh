#!/usr/bin/env bash
# A short load on a server with a tiny model: load_test.sh PYTHON PROGRAM MAKE_TINY_MODEL FLAGS-OF-load.py...
# First that the check can see: an answer that differs, and memory that grows, must be found.
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
assert load.growth([(t, 100 + t) for t in range(100)], 20)["growth"] > 50
assert load.growth([(t, 100 + min(t, 20)) for t in range(100)], 20)["growth"] == 0
EOF_PYTHON

"$python" "$bench/load.py" --program "$program" "$@" --json "$work/figures" -- \
  -m "$work/tiny.gguf" -c 4000 --parallel 6 --spec magicdec --spec suffix --cache-ram 4 -q
