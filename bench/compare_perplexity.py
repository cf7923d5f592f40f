#!/usr/bin/env python3
"""Perplexity of a GGUF model by llama.cpp and by us on the same text and windows.

Windows of -c tokens, each opened by BOS if the vocabulary has one, the second half scored. llama.cpp's is the lower of flash attention off
and on (-fa 0 and 1). Needs the PyPI package llama-cpp-python and a built `specextend`.

    python3 bench/compare_perplexity.py TEXT [--program build/release/apps/specextend] [-c 512] [--windows 40]
"""
import argparse
import ctypes
import math
import os
import re
import subprocess

import llama_cpp as lc
import numpy as np


@lc.llama_log_callback
def silent(level, text, data):
    pass


def kv_types(args):
    """llama.cpp's words for --kv-type and --value-type; its own default is f16."""
    number = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 8, "bf16": 30}.__getitem__  # of ggml_type
    keys, values = args.kv_type, args.value_type or args.kv_type
    return {**({"type_k": number(keys)} if keys else {}), **({"type_v": number(values)} if values else {})}


def settings(value_type):
    """llama.cpp's flash attention, off and on; quantised V need it on."""
    return [False, True] if value_type in ("", "f32", "f16", "bf16") else [True]


def peer(args):
    """Its lower perplexity, the tokens scored, and with which setting of flash attention."""
    return min((*peer_with(args, flash), flash) for flash in settings(args.value_type or args.kv_type))


def peer_with(args, flash):
    lc.llama_log_set(silent, ctypes.c_void_p(0))
    llm = lc.Llama(args.model, n_ctx=args.c, n_batch=args.c, n_ubatch=512, n_threads=args.threads, n_threads_batch=args.threads,
                   logits_all=True, flash_attn=flash, verbose=False, **kv_types(args))
    text = open(args.text, "rb").read()
    tokens = llm.tokenize(text, add_bos=True, special=False)
    bos = tokens[0] if tokens and tokens[0] == llm.token_bos() else None
    total, count = 0.0, 0
    for w in range(min(args.windows, len(tokens) // args.c)):
        part = list(tokens[w * args.c:(w + 1) * args.c])
        if bos is not None:
            part[0] = bos
        llm.reset()
        llm.eval(part)
        first = args.c // 2
        logits = np.array(llm.scores[first:args.c - 1], dtype=np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(logits).sum(axis=1))
        total += float((log_sum - logits[np.arange(len(logits)), part[first + 1:]]).sum())
        count += len(logits)
    return math.exp(total / count), count


def ours(args, flags):
    """Our perplexity of the same windows, and what the program printed."""
    command = [args.program, "perplexity", "-m", args.model, "-f", args.text, "-c", str(args.c), "--windows", str(args.windows),
               "-t", str(args.threads), "-q", *flags]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(re.search(r"perplexity ([0-9.]+)", out).group(1)), out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--program", default="build/release/apps/specextend")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    parser.add_argument("--model", default=os.path.join(cache, "specextend/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("-c", type=int, default=512)
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-type", default="", help="of the KV cache in both programs")
    parser.add_argument("--value-type", default="", help="of V, if it is another")
    args = parser.parse_args()
    theirs, count, flash = peer(args)
    mine, out = ours(args, (["--kv-type", args.kv_type] if args.kv_type else []) + (["--ctv", args.value_type] if args.value_type else []))
    print(f"llama.cpp {theirs:.4f} (-fa {int(flash)}), ours {mine:.4f}, difference {100 * (mine / theirs - 1):+.3f} % ({args.windows} windows of {args.c}, {count} tokens scored)")
    print(out.strip())


if __name__ == "__main__":
    main()
