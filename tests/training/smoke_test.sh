#!/usr/bin/env bash
# The smoke test of the training recipe in the environment that ./test has made; skipped without it. One thread and low
# priority: it runs beside other tests, some of which look at the clock.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tools/setup.sh
source "$root/tools/setup.sh"
if ! training_ready; then
  say "training: there is no environment with PyTorch in $SX_TRAINING; ./test makes it"
  exit 77
fi
OMP_NUM_THREADS=1 PYTHON="$SX_TRAINING/bin/python" exec nice -n 10 "$root/training/smoke_test.sh"
