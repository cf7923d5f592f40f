#!/usr/bin/env bash
# Preset auto beside plain decoding and the fixed presets, as a user waits, piece by piece until the time is over; run again, it goes on.
#   bench/auto_grid.sh cpu   PROGRAM MODEL DATA OUT [SECONDS]   answers of 16, 64 and 256 tokens at T = 0, 0.8 and 1
#   bench/auto_grid.sh batch PROGRAM MODEL DATA OUT [SECONDS]   batches of 1 to 32 behind 2K tokens
#   bench/auto_grid.sh long  PROGRAM MODEL DATA OUT [SECONDS]   self and auto without any other draft behind 7.5K and 15K tokens
# DATA   a folder with short.jsonl and long.jsonl (cpu), batch.jsonl (batch) or far.jsonl (long), of bench/make_eval_data.py
# OUT    gets a folder for each piece, with results.jsonl and report.html, and cells.txt (bench/eval_cells.py)
# Environment: SX_FLAGS for all commands (-t 8, --device cuda), SX_HEAD an EAGLE-3 head and SX_SMALL a draft model (the shipped ones), SX_BATCHES,
# SX_LENGTH, SX_CONTEXT, SX_NEW, SX_REPETITIONS for smaller grids of batch and long.
# Exit status: 0 if all pieces ended or were cut by the time; 1 if one failed, e.g. by bytes that differ.
set -uo pipefail
[[ $# -ge 5 ]] || { sed -n '2,10s/^# \?//p' "${BASH_SOURCE[0]}"; exit 64; }
what=$1 program=$2 model=$3 data=$4 out=$5 seconds=${6:-360}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
begin=$(date +%s) status=0
head=${SX_HEAD:+:draft-model=$SX_HEAD} small=${SX_SMALL:+:draft-model=$SX_SMALL}
mkdir -p "$out"

piece() {  # NAME DATA ARGUMENTS...: one evaluation in the time that is left
  local name=$1 file=$2 left=$((seconds - $(date +%s) + begin)) ended=0
  shift 2
  ((left > 5)) || { echo "$name: no time left"; return; }
  # shellcheck disable=SC2086
  timeout -s INT -k 20 "$left" "$program" eval "$file" -m "$model" --chat -o "$out/$name" -q ${SX_FLAGS:-} "$@" >"$out/$name.txt" 2>&1 || ended=$?
  echo "$name: $(($(date +%s) - begin)) s, status $ended"
  [[ $ended == 0 || $ended == 124 || $ended == 130 ]] || { status=1; tail -3 "$out/$name.txt"; }
}

case $what in
cpu)
  methods=(--spec "auto$head" --spec suffix --spec "specextend$small" --spec "specextend-eagle3$head" --repetitions 1)
  piece short-64 "$data/short.jsonl" "${methods[@]}" -c 4096 --temp 0,1 -n 64
  piece long "$data/long.jsonl" "${methods[@]}" -c 8192 --temp 0,0.8 -n 64
  piece short-16 "$data/short.jsonl" "${methods[@]}" -c 4096 --temp 0,1 -n 16
  piece short-256 "$data/short.jsonl" "${methods[@]}" -c 4096 --temp 0,1 -n 256
  piece short-warm "$data/short.jsonl" "${methods[@]}" -c 4096 --temp 0.8 -n 64
  piece long-256 "$data/long.jsonl" "${methods[@]}" -c 8192 --temp 0 -n 256
  ;;
batch)
  methods=(--spec "auto$head" --spec "auto${head:-:}${head:+,}tree=eagle2" --spec suffix --spec "specextend-eagle3$head" --spec "specextend$small")
  grid=(-c "${SX_CONTEXT:-3072}" --length "${SX_LENGTH:-2048}" --batch "${SX_BATCHES:-1,4,8,16,32}" -n "${SX_NEW:-128}")
  piece batch "$data/batch.jsonl" "${methods[@]}" "${grid[@]}" --repetitions "${SX_REPETITIONS:-2}"
  piece batch-self "$data/batch.jsonl" --spec self "${grid[@]}" --repetitions 1
  ;;
long)  # without drafts beside the program
  SPECEXTEND_MODELS=$(mktemp -d)
  export SPECEXTEND_MODELS
  piece long-self "$data/far.jsonl" --spec self --spec auto -c "${SX_CONTEXT:-16384}" --length "${SX_LENGTH:-7500,15000}" --temp 0,0.8 --repeat-penalty 1.1 -n "${SX_NEW:-128}" --repetitions "${SX_REPETITIONS:-2}"
  rmdir "$SPECEXTEND_MODELS"
  ;;
*) echo "there is no $what: cpu, batch or long"; exit 64 ;;
esac
compgen -G "$out/*/results.jsonl" >/dev/null && [[ -f $here/eval_cells.py ]] && for form in "" --decode; do echo "${form:-whole}"; python3 "$here/eval_cells.py" "$out"/*/results.jsonl $form; done >"$out/cells.txt"
exit "$status"
