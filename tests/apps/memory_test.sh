#!/usr/bin/env bash
# Peak memory of a generation behind a long prompt: weights + K/V + 200 MB at most. Arguments: the program.
# Needs the default model and a text of about 7K tokens that every Debian has; skipped (exit 77) without them.
set -u
program=$1
text=/usr/share/common-licenses/GPL-3
model="${XDG_CACHE_HOME:-$HOME/.cache}/specextend/models/SmolLM2-135M-Instruct.Q4_1.gguf"
[ -r "$text" ] && [ -r "$model" ] || { echo "skipped: needs $text and $model"; exit 77; }
"$program" generate -m "$model" -f "$text" -n 16 -q >/dev/null &
pid=$!
peak=0
while kill -0 "$pid" 2>/dev/null; do
  now=$(awk '/VmHWM/ {print $2}' "/proc/$pid/status" 2>/dev/null)
  [ -n "${now:-}" ] && [ "$now" -gt "$peak" ] && peak=$now
  sleep 0.05
done
wait "$pid" || { echo "generate failed"; exit 1; }
# 96.6 MB of weights, 8,192 cells of 30 layers x 3 heads x 64 x 2 values x 2 bytes, 200 MB.
limit=$(((96600000 + 8192 * 30 * 3 * 64 * 2 * 2 + 200000000) / 1024))
echo "peak $peak KiB, limit $limit KiB"
[ "$peak" -gt 0 ] && [ "$peak" -le "$limit" ]
