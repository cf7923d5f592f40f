#!/usr/bin/env bash
# Formats the C++ and CUDA files by .clang-format (version 14, Debian's package clang-format-14), and wraps their comments at 120
# columns (tools/wrap_comments.py).
#   tools/format.sh [FILE...]           rewrites the files; without names, all tracked ones
#   tools/format.sh --check [FILE...]   names the files that would change; exit status 1 if there are any
# Exit status 77 means that no clang-format 14 is installed: ctest counts the check as skipped.
# `// clang-format off` and `on` keep hand-aligned assembly and tables as they are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

check=0
case "${1:-}" in
  --check) check=1; shift ;;
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac

formatter=""
for name in clang-format-14 clang-format; do
  if command -v "$name" >/dev/null && [[ "$("$name" --version)" == *"version 14."* ]]; then
    formatter="$name"
    break
  fi
done
if [[ -z "$formatter" ]]; then
  echo "format: skipped, clang-format 14 is not installed (Debian: apt-get install clang-format-14)" >&2
  exit 77
fi

files=("$@")
[[ $# -gt 0 ]] || mapfile -t files < <(git ls-files '*.cc' '*.h' '*.cu' '*.cuh' '*.inl')
if [[ $check -eq 0 ]]; then
  printf '%s\0' "${files[@]}" | xargs -0r tools/wrap_comments.py
  printf '%s\0' "${files[@]}" | xargs -0r -P "$(nproc)" -n 16 "$formatter" -i
  exit 0
fi

wrong="$(printf '%s\0' "${files[@]}" | { xargs -0r -P "$(nproc)" -n 16 "$formatter" --dry-run --ferror-limit=1 2>&1 || true; } |
  sed -n 's/^\([^ :][^:]*\):[0-9]*:[0-9]*: warning: .*clang-format.*/\1/p' | sort -u)"
status=0
printf '%s\0' "${files[@]}" | xargs -0r tools/wrap_comments.py --check || status=1
if [[ -z "$wrong" ]]; then
  [[ $status -ne 0 ]] || echo "format: clean"
  exit "$status"
fi
while read -r file; do echo "format: $file is not formatted; run tools/format.sh $file"; done <<<"$wrong"
exit 1
