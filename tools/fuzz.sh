#!/usr/bin/env bash
# Fuzzes every parser with libFuzzer (clang): a million inputs each, or as many as given.
#   tools/fuzz.sh [RUNS [NAME...]]      e.g. tools/fuzz.sh 100000 gguf tokenizer
# New inputs that reach new code are kept in build/fuzz/corpus/NAME, findings in build/fuzz/findings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/setup.sh
source tools/setup.sh

runs="${1:-1000000}"
shift || true
install_packages "${SX_BUILD_PACKAGES[@]}" clang libclang-rt-14-dev
build fuzz
names=("$@")
if [[ ${#names[@]} -eq 0 ]]; then
  for source in fuzz/fuzz_*.cc; do
    name="${source##*/fuzz_}"
    names+=("${name%.cc}")
  done
fi
mkdir -p build/fuzz/findings
failed=()
for name in "${names[@]}"; do
  corpus=("build/fuzz/corpus/$name")
  mkdir -p "${corpus[0]}"
  for folder in "fuzz/corpus/$name" "build/fuzz/fuzz/seeds/$name"; do
    [[ ! -d "$folder" ]] || corpus+=("$folder")
  done
  say "fuzz: $name, $runs inputs"
  if ! "build/fuzz/fuzz/fuzz_$name" -runs="$runs" -max_len=65536 -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
      -artifact_prefix="build/fuzz/findings/$name-" "${corpus[@]}" \
      >"build/fuzz/$name.log" 2>&1; then
    failed+=("$name")
    tail -n 30 "build/fuzz/$name.log" >&2
  fi
  grep -E '^(stat::number_of_executed_units|Done)' "build/fuzz/$name.log" >&2 || true
done
if [[ ${#failed[@]} -gt 0 ]]; then die "found something in: ${failed[*]} (build/fuzz/findings, build/fuzz/*.log)"; fi
say "fuzz: nothing found"
