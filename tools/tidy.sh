#!/usr/bin/env bash
# Runs clang-tidy with .clang-tidy on the .cc files that differ from a base commit.
#   tools/tidy.sh [--most N] [BASE [BUILD]]    BASE: a commit, by default the merge base with main; BUILD: a folder that has
#                                   compile_commands.json, by default build/ci (every preset writes one)
#                                   --most N: does nothing, and says so, where more than N files differ (a file takes some 10 s)
# Warnings are errors: exit status 1 if there are any. Exit status 77 means that clang-tidy or the build folder is missing.
# Files of other instruction sets and CUDA files are not in compile_commands.json as clang could read them, and are left out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

most=1000000
case "${1:-}" in
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  --most) most="$2"; shift 2 ;;
esac
base="${1:-$(git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)}"
build="${2:-build/ci}"

if ! command -v clang-tidy >/dev/null; then
  echo "tidy: skipped, clang-tidy is not installed (Debian: apt-get install clang-tidy)" >&2
  exit 77
fi
if [[ ! -f "$build/compile_commands.json" ]]; then
  echo "tidy: skipped, $build/compile_commands.json is missing: configure first (cmake --preset ci)" >&2
  exit 77
fi
git rev-parse --verify --quiet "$base^{commit}" >/dev/null || { echo "tidy: '$base' is not a commit" >&2; exit 2; }

# Changed against the base, or new and not ignored.
mapfile -t changed < <({ git diff --name-only --diff-filter=d "$base" -- '*.cc'; git ls-files --others --exclude-standard '*.cc'; } | sort -u)
known=()
for file in "${changed[@]}"; do
  if grep -qF "$PWD/$file\"" "$build/compile_commands.json"; then known+=("$file"); fi
done
if [[ ${#known[@]} -eq 0 ]]; then
  echo "tidy: no compiled file differs from $base"
  exit 0
fi
if [[ ${#known[@]} -gt $most ]]; then
  echo "tidy: skipped, ${#known[@]} files differ from $base, more than $most; run tools/tidy.sh by hand" >&2
  exit 77
fi
echo "tidy: ${#known[@]} files that differ from $base"
printf '%s\0' "${known[@]}" | xargs -0 -P "$(nproc)" -n 1 clang-tidy --quiet --warnings-as-errors='*' --extra-arg=-Wno-unknown-warning-option -p "$build"
