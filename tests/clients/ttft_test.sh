#!/usr/bin/env bash
# bench/server/ttft.py runs and fills its tables; a tiny model's times say nothing. ttft_test.sh PYTHON PROGRAM MAKE_TINY_MODEL
set -euo pipefail
python="$1" program="$2" make_tiny="$3"
bench=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../bench/server" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$make_tiny" "$work/tiny.gguf"
"$python" "$bench/ttft.py" --program "$program" --model "$work/tiny.gguf" --prompts 100 500 --repetitions 2 --streams 1 3 \
  --prompt 50 --tokens 20 --json "$work/figures" -- --spec suffix
"$python" - "$work/figures" <<'EOF_PYTHON'
import json, sys
figures = json.load(open(sys.argv[1]))
assert [row["prompt"] for row in figures["first_token"]] == [100, 500], figures
assert all(row["with"] > 0 and row["without"] > 0 and row["ratio"] > 0 for row in figures["first_token"]), figures
assert [row["streams"] for row in figures["throughput"]] == [1, 3], figures
assert all(row["with"] > 0 and row["without"] > 0 for row in figures["throughput"]), figures
EOF_PYTHON
