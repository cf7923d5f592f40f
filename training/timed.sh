#!/usr/bin/env bash
# Better drafts from today's within a fixed time on one GPU: reads the target, takes today's drafts as they are shipped,
# samples, trains on, packs, evaluates both. A stage that fails or runs late is left behind and the next one works with
# what there is; drafts are written at every validation. Progress: WORK/log; what each stage says: WORK/logs.
#
#   WORK=FOLDER training/timed.sh INPUTS [DRAFTS_OF_TODAY]
#
# WORK/model.gguf is the target. INPUTS holds tokens.npy.xz and prompts.npz, both by corpus.py. DRAFTS_OF_TODAY: models/.
# Environment: MINUTES (18) in all, of which SAMPLE (150), WIDE (45) and EVALUATE (100) seconds go to rows of 2K tokens,
# windows of 8K and the evaluation; PYTHON; SAMPLE_OPTIONS, WIDE_OPTIONS, TRAIN_OPTIONS, EVALUATE_OPTIONS come last.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
inputs=$(cd "$1" && pwd)
models=${2:-$here/../models}
work=${WORK:?is to name a folder} python=${PYTHON:-python3} began=$(date +%s)
sample=${SAMPLE:-150} wide=${WIDE:-45} evaluate=${EVALUATE:-100}
end=$((began + ${MINUTES:-18} * 60))
mkdir -p "$work/logs" "$work/start" "$work/samples" "$work/none" "$work/results" "$work/packed"
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export TORCHINDUCTOR_CACHE_DIR=$work/inductor TORCHINDUCTOR_FX_GRAPH_CACHE=1 TORCHINDUCTOR_AUTOGRAD_CACHE=1

left() { echo $((end - $(date +%s))); }
say() { echo "$(date +%T) +$(($(date +%s) - began))s $*" >> "$work/log"; }

# stage NAME SECONDS SCRIPT ARGUMENTS...: ends at the latest after the seconds, and never later than all of it.
stage() {
  local name=$1 limit=$2 from
  from=$(date +%s)
  shift 2
  [ "$limit" -lt "$(left)" ] || limit=$(left)
  if [ "$limit" -lt 1 ]; then say "$name: no time left"; return 1; fi
  say "$name: begins, at most ${limit}s"
  timeout -k 5 "$limit" "$python" "$here/$1.py" "${@:2}" > "$work/logs/$name.log" 2>&1
  local rc=$?
  say "$name: rc $rc after $(($(date +%s) - from))s: $(tail -n 1 "$work/logs/$name.log" | cut -c1-160)"
  return $rc
}

unpack='import lzma, shutil, sys
with lzma.open(sys.argv[1]) as a, open(sys.argv[2], "wb") as b: shutil.copyfileobj(a, b)'
learn=(--turns longspec dflash longspec dflash none --long 8192 --long-share 0.2 --rates 1.2e-3 8e-4 1.5e-3 --sharpen 0.1)

say "begins: $("$python" -c 'import torch; print(torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU")')"
echo $((end - evaluate - 15)) > "$work/until"
stage shipped 120 shipped "$models" "$work/start" &
"$python" -c "$unpack" "$inputs/tokens.npy.xz" "$work/tokens.npy" 2> "$work/logs/unpack.log" &
stage read 120 gguf_reader "$work/model.gguf" "$work/model"
wait
[ -s "$work/tokens.npy" ] || say "tokens.npy: missing"

# Beside the sampling: a few steps on the real text, so that what the training needs is compiled by then; today's drafts.
# shellcheck disable=SC2086  # several options in one variable
{
  stage warm $((sample + wide)) train "$work/model" "$work/tokens.npy" "$work/none" "$work/warm" --steps 15 \
    --only small eagle3 longspec dflash "${learn[@]}" --long-share 0.5 ${TRAIN_OPTIONS:-} &
  EAGER=1 stage before $((sample + wide + 200)) evaluate "$work/model" "$work/start" "$inputs/prompts.npz" \
    "$work/results/before.json" --forms shipped ${EVALUATE_OPTIONS:-} &
  stage sample $((sample + 45)) sample "$work/model" "$work/tokens.npy" "$work/samples" --seconds "$sample" \
    --tokens 2359296 ${SAMPLE_OPTIONS:-}
  stage wide $((wide + 30)) sample "$work/model" "$work/tokens.npy" "$work/samples" --only long --length 8192 \
    --prompt-share 0.875 --tokens 2097152 --prefix w --batches 1 --seed 2 --seconds "$wide" \
    ${SAMPLE_OPTIONS:-} ${WIDE_OPTIONS:-}
}

# train NAME START OPTIONS...
train() {
  local name=$1 start=$2
  shift 2
  # shellcheck disable=SC2046,SC2086
  stage "$name" $(($(left) - 40)) train "$work/model" "$work/tokens.npy" "$work/samples" \
    "$work/drafts" $([ -z "$(ls "$start")" ] || echo --start-from "$start") --until "$work/until" "$@" ${TRAIN_OPTIONS:-}
}
merged() { # today's drafts, or later ones where the training has written any
  mkdir -p "$work/again"
  for name in small eagle3 longspec dflash; do
    if [ -e "$work/drafts/$name/model.safetensors" ]; then rm -rf "$work/again/$name"; cp -r "$work/drafts/$name" "$work/again/$name"
    elif [ -e "$work/start/$name" ]; then cp -r "$work/start/$name" "$work/again/$name"; fi
  done
  echo "$work/again"
}
time_to_train() { [ $(($(cat "$work/until") - $(date +%s))) -gt "${LEAST:-60}" ]; }
if ! train train "$work/start" --only small eagle3 longspec dflash "${learn[@]}" && time_to_train; then
  say "train: again, small and eagle3 alone and without windows"
  # shellcheck disable=SC2046
  if ! train second "$(merged)" --only small eagle3 --rates 1.2e-3 8e-4 1.5e-3 && time_to_train; then
    say "train: again, nothing compiled"
    EAGER=1 train third "$(merged)" --only small eagle3 --rates 1.2e-3 8e-4 1.5e-3
  fi
fi

stage pack 60 pack "$work/drafts" "$work/packed" &
names=$("$python" -c 'import sys, numpy; print(*numpy.load(sys.argv[1]).files)' "$inputs/prompts.npz")
for name in $names; do  # each in a process of its own: they wait for the host, not for the GPU
  # shellcheck disable=SC2086
  EAGER=1 stage "after-$name" "$evaluate" evaluate "$work/model" "$work/drafts" "$inputs/prompts.npz" \
    "$work/results/after-$name.json" --forms shipped --only "$name" ${EVALUATE_OPTIONS:-} &
done
wait
say "done"
touch "$work/done"
