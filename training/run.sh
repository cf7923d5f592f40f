#!/usr/bin/env bash
# Trains the three drafts on one GPU from nothing: GGUF target, folder of text, evaluation prompts -> drafts, results.
# A step whose result is there already is skipped, so a run that broke off goes on where it stopped.
set -euo pipefail
if [ $# -lt 4 ]; then
  echo "usage: $0 TARGET.gguf TEXT_FOLDER WORK_FOLDER PROMPTS.jsonl [OTHER_EVALUATION.jsonl ...]" >&2
  echo "environment: PYTHON, SAMPLE_SECONDS (260), TRAIN_SECONDS (1000), TRAIN_OPTIONS (more options of train.py)" >&2
  exit 2
fi
target=$1 text=$2 work=$3 prompts=$4
evaluation=("${@:4}")
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONUNBUFFERED=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
run() { "${PYTHON:-python3}" "$here/$1.py" "${@:2}"; }
mkdir -p "$work"

[ -e "$work/model/tokenizer.json" ] || run gguf_reader "$target" "$work/model"
[ -e "$work/tokens.npy" ] || run corpus text "$text" "$work/model" "$work/tokens.npy" "${evaluation[@]}"
[ -e "$work/prompts.npz" ] || run corpus prompts "$prompts" "$work/model" "$work/prompts.npz"
if [ ! -e "$work/samples/done" ]; then
  run sample "$work/model" "$work/tokens.npy" "$work/samples" --seconds "${SAMPLE_SECONDS:-260}" |
    tee "$work/sample.log"
  touch "$work/samples/done"
fi
if [ ! -e "$work/drafts/done" ]; then
  # shellcheck disable=SC2086  # several options in one variable
  run train "$work/model" "$work/tokens.npy" "$work/samples" "$work/drafts" --seconds "${TRAIN_SECONDS:-1000}" \
    ${TRAIN_OPTIONS:-} | tee "$work/train.log"
  touch "$work/drafts/done"
fi
EAGER=1 run evaluate "$work/model" "$work/drafts" "$work/prompts.npz" "$work/results.json" | tee "$work/evaluate.log"
