#!/usr/bin/env bash
# On a machine with a GPU: several ranks on the one GPU, bits and cost, within a few minutes from a bare checkout.
#   bench/cuda/run_ranks.sh FOLDER
#   bench/cuda/run_ranks.sh --pack FILE.tar.gz      on a machine with Debian's packages: those that the build needs, for SX_PACKAGES elsewhere
# FOLDER    gets summary.txt (written after every step), build.log, ranks.txt (tests and times), nccl.txt and more.txt
# Environment: SX_LIMIT seconds in all (200), SX_ARCH architectures (90a-real), SX_BUILD folder of the build (/tmp/specextend-ranks),
#   SX_PACKAGES what --pack has written, unpacked over / first, SX_MORE_TESTS a filter for test_cuda and test_parity, run if time is left.
# Exit status: 0 if every test that was begun passed and none was cut off.
set -uo pipefail
[[ $# -ge 1 ]] || { sed -n '2,9s/^# \?//p' "${BASH_SOURCE[0]}"; exit 64; }

if [[ "$1" == --pack ]]; then
  [[ $# -eq 2 ]] || { echo 'run_ranks.sh --pack FILE.tar.gz' >&2; exit 64; }
  packages=(libgtest-dev libgmock-dev libfmt-dev libfmt9 libpcre2-dev libpcre2-8-0 libutf8proc-dev libutf8proc2 nlohmann-json3-dev)
  # Google's sources and the other widths of PCRE2 are not used.
  dpkg -L "${packages[@]}" | while read -r file; do [[ -f "$file" || -L "$file" ]] && [[ ! -d "$file" ]] && echo "$file"; done |
    grep -vE '^/usr/(src|share/(doc|man|lintian))/|pcre2-(16|32|posix)\.(a|so)|pcre2-(8|posix)\.a$' | sort -u |
    tar --owner=0 --group=0 -czf "$2" -P --transform='s,^/lib/,/usr/lib/,' --transform='s,^/,,' -T - && ls -l "$2"
  exit
fi

mkdir -p "$1"; folder=$(readlink -f "$1") build=${SX_BUILD:-/tmp/specextend-ranks} limit=${SX_LIMIT:-200} failed=0
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
begin=$(date +%s)
left() { echo $((limit - ($(date +%s) - begin))); }
say() { echo "[$(($(date +%s) - begin)) s] $*" | tee -a "$folder/summary.txt"; }
: >"$folder/summary.txt"
: >"$folder/ranks.txt"

# Runs a test program: tests PROGRAM FILTER LOG SECONDS [SHARDS]. Says how many passed, and which did not.
tests() {
  local program=$1 filter=$2 log=$3 seconds=$4 shards=${5:-1} i status=0 pids=()
  [[ $seconds -gt $(left) ]] && seconds=$(left)
  [[ $seconds -gt 3 ]] || { say "no time for $filter"; failed=1; return; }
  for ((i = 0; i < shards; ++i)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i timeout "$seconds" "$program" --gtest_filter="$filter" >"$build/shard-$i.log" 2>&1 &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || status=$?; done
  for ((i = 0; i < shards; ++i)); do cat "$build/shard-$i.log"; done >>"$log"
  local now; now=$(for ((i = 0; i < shards; ++i)); do cat "$build/shard-$i.log"; done)
  say "$filter: $(grep -c '^\[       OK' <<<"$now") pass, $(grep -c '^\[  SKIPPED .* ms)' <<<"$now") skipped, $(grep -c '^\[  FAILED .* ms)' <<<"$now") failed$([[ $status == 124 ]] && echo ', cut off: time was up')"
  grep -E '^measured:|^\[  FAILED .* ms\)|share a device|is not installed' <<<"$now" | tee -a "$folder/summary.txt"
  [[ $status == 0 ]] || failed=1
}

[[ -z "${SX_PACKAGES:-}" ]] || tar -xzf "$SX_PACKAGES" -C / --keep-directory-symlink || say 'the packages cannot be unpacked'
nccl=${SPECEXTEND_NCCL_LIBRARY:-$(ldconfig -p 2>/dev/null | awk '/libnccl\.so\.2/ {print $NF; exit}')}
[[ -n "$nccl" ]] || nccl=$(find / -xdev -name 'libnccl.so.2' -not -path '/proc/*' 2>/dev/null | head -1)
[[ -z "$nccl" ]] || export SPECEXTEND_NCCL_LIBRARY="$nccl"
say "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>&1 | head -1); $(nvcc --version 2>&1 | grep -o 'V[0-9.]*$'); $(nproc) cores; NCCL: ${nccl:-not here}; mpirun: $(command -v mpirun || echo 'not here')"

# Ranks that share a GPU are threads here, and rows go through host memory: NCCL refuses two ranks on one GPU. Its own cost is measured by
# messages of a rank to itself.
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES="${SX_ARCH:-90a-real}" -DSPECEXTEND_CUDA=ON -DSPECEXTEND_TESTS=ON \
  -DSPECEXTEND_BENCH=OFF -DSPECEXTEND_FUZZ=OFF -DSPECEXTEND_APPS=OFF -DSPECEXTEND_MPI=OFF -DSPECEXTEND_NATIVE_ISA=ON -DSPECEXTEND_QUICK_BUILD=ON \
  >"$folder/build.log" 2>&1 || { tail -5 "$folder/build.log"; say 'cannot be configured, see build.log'; exit 1; }
timeout "$(left)" ninja -C "$build" -k 0 test_cuda >>"$folder/build.log" 2>&1 || { grep -E 'error|FAILED' "$folder/build.log" | head; say 'does not build, see build.log'; exit 1; }
say 'test_cuda is built'
cuda=$(find "$build" -name test_cuda -type f -perm -u+x | head -1)

tests "$cuda" 'CudaRanks.MessagesAndTime:CudaLink.*' "$folder/nccl.txt" 40
tests "$cuda" 'CudaRanks.EveryFamily:Cuda/RanksOn.GiveTheBitsOfOne/cuda_plain:Cuda/RanksOn.GiveTheBitsOfOne/cuda_specextend' "$folder/ranks.txt" 60
# The other tests are built beside the next ones.
if [[ -n "${SX_MORE_TESTS:-}" ]]; then timeout "$(left)" ninja -C "$build" test_parity >>"$folder/build.log" 2>&1 & fi
tests "$cuda" 'Cuda/RanksOn.*-*/cuda_plain:*/cuda_specextend' "$folder/ranks.txt" "${SX_RANKS_SECONDS:-60}" 6
if [[ -n "${SX_MORE_TESTS:-}" ]]; then
  wait
  for program in "$cuda" $(find "$build" -name test_parity -type f -perm -u+x); do
    [[ -n "$("$program" --gtest_filter="$SX_MORE_TESTS" --gtest_list_tests 2>/dev/null)" ]] || continue
    tests "$program" "$SX_MORE_TESTS" "$folder/more.txt" 120 4
  done
fi
say 'done'
exit "$failed"
