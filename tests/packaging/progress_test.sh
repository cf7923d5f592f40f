#!/usr/bin/env bash
# What ./demo and ./test show of a long build: lines with a percentage in a log, one changing line on a terminal, the end of the
# log when it fails. `cmake` is a script here. Argument: the source tree.
set -euo pipefail
source=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
fail() { echo "FAIL: $*"; cat shown.txt; exit 1; }
mkdir -p bin build/demo
touch build/demo/build.ninja
cat >bin/cmake <<'END'
#!/bin/bash
[[ "$NINJA_STATUS" == '[%f/%t] ' ]] || exit 9
echo "[1/8] Building one"; echo "a note of the compiler"; sleep 1.2
echo "[4/8] Building four"; sleep 2.2
[[ "$*" != *broken* ]] || { echo "error: broken by intent"; exit 3; }
echo "[8/8] Linking"
END
chmod +x bin/cmake
cat >run.sh <<END
set -euo pipefail
PATH=$folder/bin:\$PATH
source "$source/tools/setup.sh"
SX_ROOT=$folder SX_LOGS=$folder/logs SX_PROGRESS=1
build demo "\$@"
END
bash run.sh specextend 2>shown.txt || fail "the build failed"
grep -q "^  12 %: 1 of 8 steps, [0-9]* s$" shown.txt || fail "no line after the first step"
grep -q "^  50 %: 4 of 8 steps, [0-9]* s$" shown.txt || fail "no line while a step takes long"
grep -q "^build: done in [3-9] s$" shown.txt || fail "no closing line"
! grep -q "note of the compiler" shown.txt || fail "the compiler's output is shown"
grep -q "note of the compiler" logs/build-demo.log || fail "the compiler's output is not kept"
if bash run.sh broken 2>shown.txt; then fail "a failed build passes"; fi
grep -q "broken by intent" shown.txt || fail "the error is not shown"
grep -q "logs/build-demo.log" shown.txt || fail "the log is not named"
if command -v script >/dev/null; then
  script -qec "bash run.sh specextend" /dev/null </dev/null >shown.txt 2>&1 || fail "the build failed on a terminal"
  tr '\r' '\n' <shown.txt | grep -q "^  50 %: 4 of 8 steps, [0-9]* s $" || fail "no changing line on a terminal"
fi
echo "all checks passed"
