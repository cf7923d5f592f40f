#!/usr/bin/env bash
# bench/server/ttft.py runs and fills its tables, a peer's too, at both of its settings; a tiny model's times say nothing. ttft_test.sh PYTHON PROGRAM MAKE_TINY_MODEL
set -euo pipefail
python="$1" program="$2" make_tiny="$3"
bench=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../bench/server" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$make_tiny" "$work/tiny.gguf"
cat > "$work/peer" <<EOF_PEER
#!/usr/bin/env bash
# Stands for a Python that has llama_cpp.server: -m llama_cpp.server --model FILE --port N --n_ctx N --flash_attn true|false
set -eu
shift 2
while [ \$# -gt 0 ]; do declare "\${1#--}=\$2"; shift 2; done
echo "\$flash_attn" >> "$work/settings"
exec "$program" serve -m "\$model" --port "\$port" -c "\$n_ctx" --parallel 3 --spec off -q
EOF_PEER
chmod +x "$work/peer"
"$python" "$bench/ttft.py" --program "$program" --model "$work/tiny.gguf" --prompts 100 500 --repetitions 2 --streams 1 3 \
  --prompt 50 --tokens 20 --peer "$work/peer" --json "$work/figures" -- --spec suffix
[ "$(sort "$work/settings" | tr '\n' ' ')" = "false true " ]
"$python" - "$work/figures" <<'EOF_PYTHON'
import json, sys
figures = json.load(open(sys.argv[1]))
assert [row["prompt"] for row in figures["first_token"]] == [100, 500], figures
assert all(row["with"] > 0 and row["without"] > 0 and row["ratio"] > 0 for row in figures["first_token"]), figures
assert all(row["peer"] > 0 for row in figures["first_token"] + figures["throughput"]), figures
assert [row["streams"] for row in figures["throughput"]] == [1, 3], figures
assert all(row["with"] > 0 and row["without"] > 0 for row in figures["throughput"]), figures
EOF_PYTHON
