#!/usr/bin/env bash
# The gaps of one key's stream beside what another key does to the server, with the default model; skipped without it.
# First that the check can see: long gaps, late first texts and unexpected statuses must be found. gaps_test.sh PYTHON PROGRAM LIMIT
set -euo pipefail
python="$1" program="$2" limit="$3"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

"$python" - "$root/bench/server" <<'EOF_PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import gaps
first = {"quiet_first": 0.1, "first": 0.1, "first_most": 0.7}
quiet = [0.02] * 100
def judged(beside, **more):
    return gaps.late("honest", gaps.figures(quiet, sorted(beside)) | first | more, 3)
assert not judged([0.059] * 100)
assert not judged([0.02] * 99 + [9])  # one in a hundred is beyond p99; it is printed
assert len(judged([0.02] * 98 + [0.061] * 2)) == 1  # p99
assert len(judged([0.02] * 94 + [0.061] * 6)) == 2  # p95, too
assert len(judged([0.02] * 100, first_most=0.81)) == 1
assert gaps.figures(quiet, [0.02] * 98 + [0.061] * 2)["above_3x"] == 0.02
short = gaps.figures([0.001] * 100, [0.009] * 100) | first  # finer than a timer
assert not gaps.late("honest", short, 3)
assert gaps.late("honest", gaps.figures([0.001] * 100, [0.011] * 100) | first, 3)
assert not gaps.odd("burst of a key", {"statuses": {200: 3, 429: 1}})
assert gaps.odd("honest", {"statuses": {200: 3, 429: 1}})
assert gaps.odd("rebinding", {"statuses": {401: 1, 403: 1}}) and gaps.odd("rebinding", {"statuses": {}})
EOF_PYTHON

if [[ -n "${WITHOUT_MODEL:-}" || -z "$("$python" "$root/tools/fetch_model.py" --check 2>/dev/null)" ]]; then
  echo "skipped: the default model is not on this machine, or would take too long"
  exit 77
fi
"$python" "$root/bench/server/gaps.py" --program "$program" --seconds 4 --limit "$limit"
