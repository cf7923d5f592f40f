#!/usr/bin/env bash
# On a machine with a GPU: builds, runs the tests of the CUDA backend, and measures whole steps.
#   bench/cuda/run_all.sh FOLDER [LENGTHS]
# FOLDER    gets the build (FOLDER/build), the widened model (FOLDER/target.gguf, 14 GB), tests.txt and bench_cuda.txt
# LENGTHS   of histories, 1024,4096,7680,16384,32768 if not given
# Environment: SX_ARCH architectures (90a-real), SX_SHARDS processes that share the tests (6).
# Exit status: 0 if all tests pass and the bench ran.
set -uo pipefail
[[ $# -ge 1 ]] || { sed -n '2,7s/^# \?//p' "${BASH_SOURCE[0]}"; exit 64; }
mkdir -p "$1"; folder=$(readlink -f "$1") lengths=${2:-1024,4096,7680,16384,32768} shards=${SX_SHARDS:-6}
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
begin=$(date +%s)
say() { echo "[$(($(date +%s) - begin)) s] $*"; }
build() {  # targets
  ninja -C "$folder/build" "$@" >"$folder/build.log" 2>&1 || { grep -E 'error|FAILED' "$folder/build.log" | head; say "does not build, see $folder/build.log"; exit 1; }
}
program() { find "$folder/build" -name "$1" -type f -perm -u+x | head -1; }

cmake -S . -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES="${SX_ARCH:-90a-real}" -DSPECEXTEND_CUDA=ON \
  -DSPECEXTEND_TESTS=ON -DSPECEXTEND_BENCH=ON -DSPECEXTEND_FUZZ=OFF >"$folder/cmake.log" 2>&1 ||
  { tail -5 "$folder/cmake.log"; say "cannot be configured, see $folder/cmake.log"; exit 1; }
build test_cuda test_parity
say 'tests are built'
rm -f "$folder"/tests-*.log
for ((i = 0; i < shards; ++i)); do
  GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i timeout 600 "$(program test_cuda)" --gtest_filter='*Cuda*:-*WithoutCuda*' >"$folder/tests-$i.log" 2>&1 &
done
timeout 600 "$(program test_parity)" --gtest_filter='Cuda/*' >"$folder/tests-parity.log" 2>&1 &
build bench_cuda specextend specextend-widen
say 'the rest is built'
wait
status=0
for log in "$folder"/tests-*.log; do
  grep -q '^\[  PASSED  \] [1-9]' "$log" && ! grep -qE '^\[  (FAILED|SKIPPED) ' "$log" && continue
  status=1; say "tests failed, were skipped or did not end: $log"; grep -E '^\[  (FAILED|SKIPPED) ' "$log" | sort -u | head -5
done
grep -hE '^\[ +(OK|FAILED) \]' "$folder"/tests-*.log >"$folder/tests.txt"
say "$(grep -c OK "$folder/tests.txt") tests pass"

[[ -s $folder/target.gguf ]] || "$(program specextend-widen)" models/smollm2-135m-small/draft.gguf "$folder/target.gguf" --shape llama-8b --type BF16 \
  >"$folder/widen.log" 2>&1 || { tail -3 "$folder/widen.log"; exit 1; }
"$(program bench_cuda)" --model "$folder/target.gguf" --lengths "$lengths" >"$folder/bench_cuda.txt" 2>&1 || status=1
cat "$folder/bench_cuda.txt"
say 'done'
exit "$status"
