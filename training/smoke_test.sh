#!/usr/bin/env bash
# The whole pipeline on a CPU in under two minutes, with a tiny random target: reads a GGUF file, makes a corpus,
# samples, trains, starts again from the result, evaluates, and checks all of it. PYTHON names the interpreter.
set -euo pipefail
python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} PYTHONDONTWRITEBYTECODE=1
cd "$work"

run() { "$python" "$here/$1.py" "${@:2}"; }
tiny=(--rows 2 --length 512 --small 64 2 2 1 128 --eagle-vocab 256 --medusa-vocab 192 --held-out 2 --log-every 5
      --warm-up 5 --unroll 3 --rates 4e-3 4e-3 4e-3 --longspec-rate 4e-3 --longspec-vocab 224 --longspec-window 64
      --dflash-rate 4e-3 --dflash-vocab 256 --dflash-layers 2 --dflash-block 4 --dflash-anchors 32)

run smoke make .
run gguf_reader target.gguf model
run corpus text text model tokens.npy evaluation.jsonl | tee corpus.log
run corpus prompts evaluation.jsonl model prompts.npz --length 256 --rows 3
run sample model tokens.npy samples --tokens 4096 --length 512 --batches 6 > sample.log
run train model tokens.npy samples drafts "${tiny[@]}" --steps 60 --only small eagle3 medusa longspec dflash \
  --long 1024 --long-share 0.3 > train.log || { cat train.log; exit 1; }
run train model tokens.npy samples again "${tiny[@]}" --steps 6 --start-from drafts --small 64 3 2 1 128 \
  --eagle-vocab 288 --medusa-soft --medusa-layers 1 > again.log || { cat again.log; exit 1; }
run evaluate model drafts prompts.npz results.json --generate 31
run pack drafts packed && run pack --unpack packed unpacked
run train model tokens.npy samples alone "${tiny[@]}" --steps 6 --only medusa > alone.log || { cat alone.log; exit 1; }
run train model tokens.npy samples long "${tiny[@]}" --steps 6 --only longspec --start-from drafts \
  --longspec-vocab 256 > long.log || { cat long.log; exit 1; }
mkdir self && ln -s ../model self/small
run evaluate model self prompts.npz self.json --generate 25 > self.log
run smoke check .
