#!/usr/bin/env bash
# The installed program finds the drafts that were installed with it, and finds them beside itself: from a copy of the
# prefix whose list was replaced. Arguments: the prefix, models/ of the source tree, the maker of tiny models.
set -euo pipefail
prefix=$1 source=$2 make_tiny=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset SPECEXTEND_MODELS
listed() { "$1/bin/specextend" methods --drafts --json | grep -c '"sha256"' || true; }
if [[ -f "$source/drafts.json" ]]; then
  expected=$(grep -c '"sha256"' "$source/drafts.json")
  [[ "$(listed "$prefix")" == "$expected" ]] || { echo "not all drafts are listed"; exit 1; }
fi
mkdir -p "$folder/bin" "$folder/share/specextend/models"
cp "$prefix/bin/specextend" "$folder/bin/"
cat >"$folder/share/specextend/models/drafts.json" <<'END'
[{"name": "moved", "kind": "model", "path": "moved.gguf", "size": 1, "sha256": "0",
  "target": {"architecture": "llama", "layers": 1, "width": 1, "vocab": 1, "vocabulary": "0"}}]
END
found=$("$folder/bin/specextend" methods --drafts)
[[ "$found" == *moved* && "$found" == *"$folder/share/specextend/models"* ]] || { echo "not found: $found"; exit 1; }
"$make_tiny" "$folder/tiny.gguf"
if "$folder/bin/specextend" generate -m "$folder/tiny.gguf" -p Hi --spec sd -q 2>"$folder/error.txt"; then
  echo "a draft for another target was used"
  exit 1
fi
grep -q "no shipped draft fits.*moved" "$folder/error.txt" || { cat "$folder/error.txt"; exit 1; }
