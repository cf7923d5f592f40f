#!/usr/bin/env python3
"""What each type of the KV cache costs: perplexity and decoding at depth, ours beside llama.cpp's with the same types.

Prints a table for docs/numbers.md. llama.cpp has f16 where ours has its fastest type (bf16 or f16), and its better of flash attention off and
on (-fa 0 and 1) in every cell; its quantised V need it on. Needs the PyPI package llama-cpp-python and a built `specextend`.

    python3 bench/compare_kv_types.py TEXT [--program build/release/apps/specextend] [--model FILE] [--windows 20] [--depths 4096,8064]
"""
import argparse
import json
import os
import subprocess

import compare_llama_cpp
import compare_perplexity

NUMBERS = {"f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 8}  # of ggml_type


def kinds(keys, values):
    return (["--kv-type", keys] if keys != "f16" else []) + (["--ctv", values] if values != keys else [])


def perplexity(args, keys, values):
    both = argparse.Namespace(**vars(args), c=512, kv_type=keys, value_type=values)
    return compare_perplexity.ours(both, kinds(keys, values))[0], compare_perplexity.peer(both)[0]


def decode(args, model, keys, values, depth):
    command = [args.program, "bench", "-m", args.model, "-t", str(args.threads), "-q", "-o", "json", "-p", "0", "-n", "24", "-d", str(depth), "-r", "5",
               *kinds(keys, values)]
    row = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)[0]
    peers = [compare_llama_cpp.Peer(model, depth + 640, args.threads, flash, (NUMBERS[keys], NUMBERS[values])) for flash in compare_perplexity.settings(values)]
    return row["avg_ms"] / row["n_tokens"], min(compare_llama_cpp.peer_decode(peer, depth, 24) for peer in peers for _ in range(2))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--program", default="build/release/apps/specextend")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    parser.add_argument("--model", default=os.path.join(cache, "specextend/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--types", default="f16,q8_0,q8_0/q4_0,q4_1,q4_0", help="K, or K/V; the first is what the others are compared with")
    parser.add_argument("--windows", type=int, default=20, help="of perplexity; 0: speed only")
    parser.add_argument("--depths", default="4096,8064", help="of decoding; empty: perplexity only")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    depths = [int(d) for d in args.depths.split(",") if d]
    model = compare_llama_cpp.open_model(args.model) if depths else None
    columns = (["perplexity ours (loss)", "llama.cpp (loss)"] if args.windows else []) + [f"ms a token @ {d}, {who}" for d in depths for who in ("ours", "llama.cpp")]
    print(f"{os.path.basename(args.model)}, {args.windows} windows of 512, {args.threads} threads; f16: our fastest, bf16 or f16\n")
    print("| K/V | " + " | ".join(columns) + " |\n| --- |" + " ---: |" * len(columns))
    base = None
    for kind in args.types.split(","):
        keys, _, values = kind.partition("/")
        cells = []
        if args.windows:
            both = perplexity(args, keys, values or keys)
            base = base or both
            cells += [f"{x:.4f} ({100 * (x / b - 1):+.2f} %)" for x, b in zip(both, base)]
        for depth in depths:
            cells += [f"{x:.2f}" for x in decode(args, model, keys, values or keys, depth)]
        print(f"| {kind} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
