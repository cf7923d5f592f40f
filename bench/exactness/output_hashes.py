#!/usr/bin/env python3
"""Hashes of generated texts: whether a change of the source has changed a single output byte.

Six prompts, greedy and at temperature 0.8, with four speculation presets: 48 generations, of which plain and speculative ones must be
equal. `--record FILE` writes their SHA-256; `--check FILE` compares with a record made on the same instruction set (CPU kernels of
different sets round differently) and exits with 1 where one differs.

    python3 bench/exactness/output_hashes.py --program build/release/apps/specextend --model MODEL.gguf --check docs/numbers/output-hashes.json
"""
import argparse
import hashlib
import json
import pathlib
import platform
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRESETS = ("off", "specextend", "specextend-eagle3", "suffix")
SAMPLING = {"greedy": ["--temp", "0"], "sampled": ["--temp", "0.8", "--seed", "7"]}
TOKENS = 96


def prompts():
    licence = (ROOT / "LICENSE").read_text()
    table = "\n".join(f"{n} times {n + 3} is {n * (n + 3)}." for n in range(2, 90))
    return {
        "short": "Three reasons why the sea is salt:\n1.",
        "code": "def quicksort(values):\n    \"\"\"Sorts a list of numbers.\"\"\"\n",
        "list": table + "\n90 times 93 is",
        "half": licence[:len(licence) // 2] + "\n\nThe text above, in simple words:",
        "whole": licence + "\n\nThe text above, in simple words:",
        "twice": licence + "\n\n" + table + "\n\nA short summary of both texts:",
    }


def generate(args, prompt_file, preset, sampling):
    command = [args.program, "generate", "-m", args.model, "-f", prompt_file, "--spec", preset, "-n", str(TOKENS), "--ignore-eos", "-q", *SAMPLING[sampling]]
    run = subprocess.run(command, capture_output=True, check=False)
    if run.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed: {run.stderr.decode(errors='replace')}")
    return hashlib.sha256(run.stdout).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--model", required=True, help="the default model: SmolLM2-135M-Instruct.Q4_1.gguf")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--record", metavar="FILE")
    how.add_argument("--check", metavar="FILE")
    args = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in prompts().items():
            file = pathlib.Path(folder) / f"{name}.txt"
            file.write_text(text)
            for sampling in SAMPLING:
                for preset in PRESETS:
                    found[f"{name} {sampling} {preset}"] = generate(args, str(file), preset, sampling)
                    print(f"\r{len(found)} of {len(prompts()) * len(SAMPLING) * len(PRESETS)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    unequal = [key for key in found if found[key] != found[" ".join(key.split()[:2]) + " off"]]
    for key in unequal:
        print(f"not the text of plain decoding: {key}")
    if args.record:
        pathlib.Path(args.record).write_text(json.dumps({"machine": platform.machine(), "tokens": TOKENS, "sha256": found}, indent=1) + "\n")
        return 1 if unequal else 0
    expected = json.loads(pathlib.Path(args.check).read_text())["sha256"]
    changed = [key for key in expected if found.get(key) != expected[key]]
    for key in changed:
        print(f"changed: {key}")
    print(f"{len(expected) - len(changed)} of {len(expected)} outputs are as recorded")
    return 1 if unequal or changed else 0


if __name__ == "__main__":
    sys.exit(main())
