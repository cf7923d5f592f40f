#!/usr/bin/env python3
"""Ours against llama.cpp, the same GGUF, the same threads, in one run.

Decode at several depths, passes of several rows (what verifying a draft costs), and prefill. Every cell of llama.cpp is the better of
flash attention off and on (-fa 0 and 1), and says which that was: on some machines one is twice as fast as the other, by the test. Each
peer figure is followed at once by ours, so that both see the same machine. Needs the PyPI package llama-cpp-python and a built `specextend`.

    python3 bench/compare_llama_cpp.py --program build/release/apps/specextend [--model FILE] [--threads 2] [--json OUT]
"""
import argparse
import ctypes
import json
import os
import random
import statistics
import subprocess
import sys
import time

import llama_cpp as lc


class Peer:
    """llama.cpp through its C interface: no copies of logits that nobody asked for."""

    def __init__(self, model, context, threads, flash, types):
        self.flash = flash
        self.model = model
        p = lc.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch = context, 2048, 512
        p.n_threads = p.n_threads_batch = threads
        if hasattr(p, "flash_attn_type"):
            p.flash_attn_type = int(flash)  # LLAMA_FLASH_ATTN_TYPE_DISABLED, _ENABLED
        else:
            p.flash_attn = flash
        p.type_k, p.type_v = types
        p.swa_full = False  # layers with windows keep their windows only, as llama.cpp's programs do
        self.context = lc.llama_init_from_model(self.model, p)
        self.vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))
        self.batch = lc.llama_batch_init(2048, 0, 1)
        self.length = 0
        self.rng = random.Random(1)

    def truncate(self, length):
        if length > 0 and lc.llama_memory_seq_rm(lc.llama_get_memory(self.context), 0, length, -1):
            self.length = length
        elif length < self.length or length == 0:  # windows have dropped what would be needed
            lc.llama_memory_clear(lc.llama_get_memory(self.context), True)
            self.length = 0

    def feed(self, n, outputs):
        b = self.batch
        b.n_tokens = n
        for i in range(n):
            b.token[i] = self.rng.randrange(self.vocab)
            b.pos[i] = self.length + i
            b.n_seq_id[i] = 1
            b.seq_id[i][0] = 0
            b.logits[i] = i >= n - outputs
        if lc.llama_decode(self.context, b) != 0:
            raise SystemExit("llama_decode failed")
        lc.llama_synchronize(self.context)
        self.length += n

    def fill(self, depth):
        if self.length > depth:
            self.truncate(depth)
        while self.length < depth:
            self.feed(min(512, depth - self.length), 0)


@lc.llama_log_callback
def silent(level, text, data):
    pass


def timed(f):
    start = time.perf_counter()
    f()
    return 1e3 * (time.perf_counter() - start)


def open_model(path):
    lc.llama_log_set(silent, ctypes.c_void_p(0))
    lc.llama_backend_init()
    return lc.llama_model_load_from_file(path.encode(), lc.llama_model_default_params())


def better(peers, measure):
    """The least time of the peers, and which of them it was. They take turns twice: what a busy moment spoils, it spoils once."""
    figures = [(measure(peer), peer.flash) for _ in range(2 if len(peers) > 1 else 1) for peer in peers]
    ms, flash = min(figures)
    others = [t for t, f in figures if f != flash]
    return {"ms": ms, "fa": int(flash), "other_ms": min(others) if others else None}


def peer_decode(peer, depth, tokens):
    peer.fill(depth)
    times = []
    for i in range(tokens + 2):
        t = timed(lambda: peer.feed(1, 1))
        if i >= 2:
            times.append(t)
    peer.truncate(depth)
    return statistics.mean(times)


def peer_rows(peer, depth, rows, repetitions):
    peer.fill(depth)
    times = []
    for i in range(repetitions + 1):
        peer.fill(depth)
        t = timed(lambda: peer.feed(rows, rows))
        peer.truncate(depth)
        if i:
            times.append(t)
    return statistics.mean(times)


def peer_prefill(peer, n):
    peer.truncate(0)
    peer.feed(8, 1)
    peer.truncate(0)

    def run():
        done = 0
        while done < n:
            step = min(512, n - done)
            peer.feed(step, 1 if done + step == n else 0)
            done += step
    return timed(run)


def ours(args, *flags):
    types = (["--kv-type", args.kv_type] if args.kv_type else []) + (["--ctv", args.value_type] if args.value_type else [])
    command = [args.program, "bench", "-m", args.model, "-t", str(args.threads), "-o", "json", "-q", *types, *flags]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)}\n{result.stderr}")
    return {row["test"]: row for row in json.loads(result.stdout)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/apps/specextend")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    parser.add_argument("--model", default=os.path.join(cache, "specextend/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depths", default="0,4096,8064")
    parser.add_argument("--row-depth", type=int, default=8064)
    parser.add_argument("--rows", default="1,2,4,8,16")
    parser.add_argument("--prefill", default="512,4096,8192")
    parser.add_argument("--kv-type", default="", help="of the KV cache in both programs; without it f16 in llama.cpp, in ours the fastest")
    parser.add_argument("--value-type", default="", help="of V, if it is another")
    parser.add_argument("--flash", choices=["0", "1", "both"], default="both", help="llama.cpp's flash attention; its quantised V need it")
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--json", help="append one JSON line per figure to this file")
    args = parser.parse_args()
    depths, rows, prefill = ([int(x) for x in t.split(",") if x] for t in (args.depths, args.rows, args.prefill))
    tokens, repetitions = (16, 3) if args.quick else (48, 5)
    model = open_model(args.model)
    number = {"": 1, "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 8, "bf16": 30}  # of ggml_type
    types = number[args.kv_type], number[args.value_type or args.kv_type]
    context = max([8192, args.row_depth, *depths, *prefill]) + 512
    flash = {"0": [False], "1": [True], "both": [False, True]}[args.flash]
    peers = [Peer(model, context, args.threads, f, types) for f in flash]
    lines = []

    def report(test, theirs, mine):
        line = {"test": test, "llama_cpp_ms": round(theirs["ms"], 3), "llama_cpp_fa": theirs["fa"],
                "llama_cpp_other_fa_ms": round(theirs["other_ms"] or float("nan"), 3), "ours_ms": round(mine["avg_ms"] / (mine["n_tokens"] if "decode" in test else 1), 3)}
        line["ratio"] = round(line["llama_cpp_ms"] / line["ours_ms"], 2)
        line["percent_of_read"] = round(mine["percent_of_read"])
        line["percent_of_arithmetic"] = round(mine["percent_of_arithmetic"])
        lines.append(line)
        print(f"| {test:<24} | {line['llama_cpp_ms']:>12.2f} | {'-fa ' + str(line['llama_cpp_fa']):>6} | {line['llama_cpp_other_fa_ms']:>8.2f} | {line['ours_ms']:>10.2f} | {line['ratio']:>6.2f} | {line['percent_of_read']:>6} | {line['percent_of_arithmetic']:>6} |", flush=True)

    print(f"llama.cpp {lc.__version__} (llama-cpp-python), {os.path.basename(args.model)}, {args.threads} threads; its better of -fa 0 and -fa 1 in every row\n")
    print(f"| {'test':<24} | {'llama.cpp ms':>12} | {'with':>6} | {'other ms':>8} | {'ours ms':>10} | {'ratio':>6} | {'% read':>6} | {'% ops':>6} |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for d in depths:
        theirs = better(peers, lambda peer: peer_decode(peer, d, tokens))
        mine = ours(args, "-p", "0", "-n", str(tokens), "-d", str(d), "-r", str(repetitions))
        report(f"decode @ {d}", theirs, next(iter(mine.values())))
    for n in rows:
        theirs = better(peers, lambda peer: peer_rows(peer, args.row_depth, n, repetitions))
        mine = ours(args, "-p", "0", "-n", "0", "--rows", str(n), "-d", str(args.row_depth), "-r", str(repetitions * 2))
        report(f"{n} rows @ {args.row_depth}", theirs, next(iter(mine.values())))
    for n in prefill:
        theirs = better(peers, lambda peer: peer_prefill(peer, n))
        mine = ours(args, "-p", str(n), "-n", "0", "-r", "1" if n > 1000 else "3")
        report(f"prefill {n}", theirs, next(iter(mine.values())))
    if args.json:
        with open(args.json, "a") as f:
            for line in lines:
                f.write(json.dumps({"model": os.path.basename(args.model), "threads": args.threads, "kv_type": args.kv_type, "value_type": args.value_type, **line}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
