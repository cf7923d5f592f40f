#!/usr/bin/env python3
"""Trained drafts as they are shipped: quantised, in models/, with the list that the engine looks them up in.

  tools/ship_drafts.py TRAINED TARGET [--program PROGRAM] [--models FOLDER] [--name NAME]

TRAINED holds `small`, `eagle3`, `medusa`, `longspec` and `dflash`, or some of them, as training/train.py writes them;
TARGET is the model they were trained for (GGUF file or folder). Types and rounding are those that the training
simulated (training/models.py).
Drafts of the list that are not in TRAINED stay. The cards, README.md in each folder, are written by hand."""
import argparse
import hashlib
import json
import pathlib
import subprocess
import sys

MOST_BYTES = 20_000_000  # of one draft
# folder of the trained draft -> kind, file or folder of the shipped one, what `specextend quantize` is told
DRAFTS = {
    "small": ("model", "draft.gguf", ["Q4_0", "--embedding", "Q4_0"]),
    "eagle3": ("eagle3", "", ["Q8_0", "--output", "Q4_0"]),
    "medusa": ("medusa", "", ["Q8_0", "--output", "Q4_0"]),
    "longspec": ("longspec", "", ["Q8_0", "--output", "Q4_0"]),
    "dflash": ("dflash", "", ["Q8_0", "--output", "Q4_0"]),
}


def call(program, *arguments):
    done = subprocess.run([str(program), *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"ship_drafts: {pathlib.Path(program).name} {arguments[0]} failed")
    return done.stdout


def sha256_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def ship(draft, options, target):
    """-> the draft's entry in the list"""
    kind, file, types = DRAFTS[draft]
    name = f"{options.name}-{draft}"
    out = options.models / name / file
    out.parent.mkdir(parents=True, exist_ok=True)
    vocabulary = ["--vocabulary", options.target] if kind == "model" else []
    how = [*types, *vocabulary, "--round", "nearest", "--force"]
    call(options.program, "quantize", options.trained / draft, out, *how)
    weights = out if kind == "model" else out / "model.safetensors"
    text = ["generate", "-m", options.target, "-p", "Once upon a time", "-n", "24", "-q", "--ignore-eos"]
    if call(options.program, *text) != call(options.program, *text, "-md", out):
        sys.exit(f"ship_drafts: the text changes when {name} drafts")
    size = weights.stat().st_size
    if size > MOST_BYTES:
        sys.exit(f"ship_drafts: {weights} has {size} bytes; at most {MOST_BYTES} are shipped")
    return {"name": name, "kind": kind, "path": str(out.relative_to(options.models)), "size": size,
            "sha256": sha256_of(weights), "target": target}


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description="Quantise trained drafts into models/ and list them.")
    parser.add_argument("trained", type=pathlib.Path, help="folder with trained drafts")
    parser.add_argument("target", type=pathlib.Path, help="the model they were trained for")
    parser.add_argument("--program", default=root / "build" / "ci" / "apps" / "specextend", help="specextend")
    parser.add_argument("--models", type=pathlib.Path, default=root / "models", help="folder to write")
    parser.add_argument("--name", default="smollm2-135m", help="of the target, in the names of the drafts")
    options = parser.parse_args()
    found = [draft for draft in DRAFTS if (options.trained / draft).is_dir()]
    if not found:
        sys.exit(f"ship_drafts: {options.trained} has none of {', '.join(DRAFTS)}")
    target = json.loads(call(options.program, "inspect", options.target, "--target"))
    path = options.models / "drafts.json"
    entries = {entry["name"]: entry for entry in json.loads(path.read_text())} if path.exists() else {}
    for draft in found:
        entry = ship(draft, options, target)
        entries[entry["name"]] = entry
        print(f"{entry['name']}: {entry['size']} bytes")
        if not (options.models / entry["name"] / "README.md").exists():
            print(f"  its card is missing: {options.models / entry['name'] / 'README.md'}")
    path.write_text(json.dumps(list(entries.values()), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
