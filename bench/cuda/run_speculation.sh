#!/usr/bin/env bash
# On a machine with a GPU and a built program: speculation end to end and in batches, on the default model widened to 8B.
#   bench/cuda/run_speculation.sh PROGRAM DEFAULT.gguf PROMPTS FOLDER
# PROGRAM   specextend in a build folder, which has specextend-widen, too (SPECEXTEND_BENCH)
# PROMPTS   has 7.5K-0.txt, 7.5K-1.txt, 7.5K-2.txt (raw prompts) and batch2k.jsonl (field text)
# FOLDER    gets the widened models and the logs: end_to_end.txt and .jsonl, batches.jsonl, prompts.txt
# The draft of `specextend` is the shipped small model as it is; the EAGLE-3 head is widened with its matrices in Q4_0.
set -uo pipefail
[[ $# -eq 4 ]] || { sed -n '2,7s/^# \?//p' "${BASH_SOURCE[0]}"; exit 64; }
program=$1 model=$2 prompts=$3 folder=$4
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
drafts=$here/../../models
status=0
widen=$(find "$(dirname "$program")/.." -name specextend-widen -type f -perm -u+x | head -1)
[[ -n $widen ]] || { echo "there is no specextend-widen beside $program: build it (SPECEXTEND_BENCH)"; exit 1; }
[[ -s $folder/target.gguf ]] || "$widen" "$model" "$folder/target.gguf" --shape llama-8b --type BF16 -q || exit 1
[[ -d $folder/eagle ]] || { "$widen" "$drafts/smollm2-135m-eagle3" "$folder/eagle16" --shape llama-8b --type BF16 -q && "$program" quantize "$folder/eagle16" "$folder/eagle" Q4_0 -q; } || exit 1
small=$drafts/smollm2-135m-small/draft.gguf

"$program" bench -m "$folder/target.gguf" --device cuda -p 64,128,512,1024 -n 64 --rows 4,16 -d 0,7680 -r 5 --no-peaks -q | tee "$folder/prompts.txt" || status=1

end_to_end() {  # NAME ARGUMENTS...
  local name=$1
  shift
  echo "$name"
  "$here/end_to_end.py" --program "$program" --model "$folder/target.gguf" --prompts "$prompts" --lengths 7.5K --count 3 --out "$folder/$name.jsonl" \
    --preset "specextend:$small" --preset "specextend-eagle3:$folder/eagle" --preset suffix "$@" || status=1
}
{ end_to_end raw; end_to_end chat --chat --repeat-penalty 1.1; end_to_end sampled --temperature 0.8 --count 2; } | tee "$folder/end_to_end.txt"
cat "$folder"/raw.jsonl "$folder"/chat.jsonl "$folder"/sampled.jsonl >"$folder/end_to_end.jsonl"

for preset in "specextend -md $small" suffix; do
  for batch in ${SX_BATCHES:-1 4 8 16 32}; do
    # shellcheck disable=SC2086
    "$program" verify-lossless -m "$folder/target.gguf" --device cuda -c 3072 --prompts "$prompts/batch2k.jsonl" --spec $preset --batch "$batch" \
      --repetitions 2 -n 128 --ignore-eos --json -q | sed "s/^{/{\"preset\": \"${preset%% *}\", /" || status=1
  done
done | tee "$folder/batches.jsonl"
exit "$status"
