#!/usr/bin/env python3
"""Ours against llama.cpp, the same GGUF, the same threads, in one run.

Decode at several depths, passes of several rows (what verifying a draft costs), and prefill. Every cell of llama.cpp is the better of
flash attention off and on (-fa 0 and 1), and says which that was: on some machines one is twice as fast as the other, by the test. The
programs take turns, so that both see the same machine; figures are medians, and beside their ratio is that of the least times. Needs the
PyPI package llama-cpp-python and a built `specextend`.

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


def peer_decode(peer, depth, tokens):
    """Mean milliseconds of a token."""
    peer.fill(depth)
    times = [timed(lambda: peer.feed(1, 1)) for _ in range(tokens + 2)]
    peer.truncate(depth)
    return statistics.mean(times[2:])


def peer_rows(peer, depth, rows):
    peer.fill(depth)
    ms = timed(lambda: peer.feed(rows, rows))
    peer.truncate(depth)
    return ms


def peer_prefill(peer, n):
    peer.truncate(0)
    peer.feed(8, 1)
    peer.truncate(0)

    def run():
        for done in range(0, n, 512):
            step = min(512, n - done)
            peer.feed(step, 1 if done + step == n else 0)
    return timed(run)


class Cell:
    """One line of the table: all times of both programs, llama.cpp's by its setting of flash attention."""

    def __init__(self, test, flags, measure):
        self.test, self.flags, self.measure = test, flags, measure
        self.theirs, self.ours, self.limits = {}, [], {}

    def settings(self):
        """llama.cpp's settings that are worth another run: not one that has been a third slower than the other."""
        best = min((statistics.median(t) for t in self.theirs.values()), default=0)
        return {flash for flash, t in self.theirs.items() if statistics.median(t) < 1.3 * best}

    def run_theirs(self, peers, warm_ups, repetitions):
        wanted = self.settings() or {peer.flash for peer in peers}
        for peer in peers:
            if peer.flash in wanted:
                times = [self.measure(peer) for _ in range(warm_ups + repetitions)]
                self.theirs.setdefault(peer.flash, []).extend(times[warm_ups:])

    def take_ours(self, row):
        tokens = row["n_tokens"] if self.test.startswith("decode") else 1
        self.ours += [ms / tokens for ms in row["samples_ms"]]
        self.limits = {"percent_of_read": round(row["percent_of_read"]), "percent_of_arithmetic": round(row["percent_of_arithmetic"])}

    def line(self):
        medians = {flash: statistics.median(t) for flash, t in self.theirs.items()}
        flash = min(medians, key=medians.get)
        others = [ms for f, ms in medians.items() if f != flash]
        mine = statistics.median(self.ours)
        return {"test": self.test, "llama_cpp_ms": round(medians[flash], 3), "llama_cpp_fa": int(flash),
                "llama_cpp_other_fa_ms": round(others[0], 3) if others else None, "llama_cpp_least_ms": round(min(self.theirs[flash]), 3),
                "llama_cpp_runs": len(self.theirs[flash]), "ours_ms": round(mine, 3), "ours_least_ms": round(min(self.ours), 3), "ours_runs": len(self.ours),
                "ratio": round(medians[flash] / mine, 2), "ratio_of_least": round(min(self.theirs[flash]) / min(self.ours), 2), **self.limits}


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
    parser.add_argument("--depths", default="0,4096,8064", help="of decoding")
    parser.add_argument("--row-depths", default="8064", help="behind which passes of several rows are measured")
    parser.add_argument("--rows", default="1,2,4,8,16")
    parser.add_argument("--prefill", default="512,4096,8192")
    parser.add_argument("--kv-type", default="", help="of the KV cache in both programs; without it f16 in llama.cpp, in ours the fastest")
    parser.add_argument("--value-type", default="", help="of V, if it is another")
    parser.add_argument("--flash", choices=["0", "1", "both"], default="both", help="llama.cpp's flash attention; its quantised V need it")
    parser.add_argument("--rounds", type=int, default=2, help="how often the programs take turns in a cell of decoding or rows")
    parser.add_argument("--repetitions", type=int, default=3, help="of each program in a round")
    parser.add_argument("--prefill-rounds", type=int, default=3, help="the same for prompts, once a round")
    parser.add_argument("--tokens", type=int, default=24, help="of one repetition of decoding")
    parser.add_argument("--quick", action="store_true", help="one round of each")
    parser.add_argument("--json", help="append one JSON line per figure to this file")
    args = parser.parse_args()
    depths, row_depths, rows, prefill = ([int(x) for x in t.split(",") if x] for t in (args.depths, args.row_depths, args.rows, args.prefill))
    if args.quick:
        args.rounds = args.prefill_rounds = 1
    model = open_model(args.model)
    number = {"": 1, "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 8, "bf16": 30}  # of ggml_type
    types = number[args.kv_type], number[args.value_type or args.kv_type]
    context = max([1024, *(d + 512 for d in depths + row_depths), *prefill])
    flash = {"0": [False], "1": [True], "both": [False, True]}[args.flash]
    peers = [Peer(model, context, args.threads, f, types) for f in flash]

    setting = "its better of -fa 0 and -fa 1" if args.flash == "both" else f"-fa {args.flash} only"
    print(f"llama.cpp {lc.__version__} (llama-cpp-python), {os.path.basename(args.model)}, {args.threads} threads; medians, llama.cpp with {setting}\n")
    print(f"| {'test':<16} | {'llama.cpp ms':>12} | {'with':>5} | {'other ms':>9} | {'ours ms':>9} | {'ratio':>5} | {'of least':>8} | {'runs':>7} | {'% read':>6} | {'% ops':>5} |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")

    def report(cell):
        line = cell.line()
        other = f"{line['llama_cpp_other_fa_ms']:.2f}" if line["llama_cpp_other_fa_ms"] else ""
        print(f"| {line['test']:<16} | {line['llama_cpp_ms']:>12.2f} | -fa {line['llama_cpp_fa']} | {other:>9} | {line['ours_ms']:>9.2f} | {line['ratio']:>5.2f} | "
              f"{line['ratio_of_least']:>8.2f} | {line['llama_cpp_runs']:>3}/{line['ours_runs']:>3} | {line['percent_of_read']:>6} | {line['percent_of_arithmetic']:>5} |", flush=True)
        if args.json:
            with open(args.json, "a") as f:
                f.write(json.dumps({"model": os.path.basename(args.model), "threads": args.threads, "kv_type": args.kv_type, "value_type": args.value_type, **line}) + "\n")

    # The deepest first: what a shorter depth needs is then there. One call of ours measures all cells of a depth.
    for depth in sorted({*depths, *row_depths}, reverse=True):
        cells = [Cell(f"decode @ {depth}", f"tg{args.tokens}", lambda peer: peer_decode(peer, depth, args.tokens))] if depth in depths else []
        if depth in row_depths:
            cells += [Cell(f"{n} rows @ {depth}", f"vr{n}", lambda peer, n=n: peer_rows(peer, depth, n)) for n in rows]
        for _ in range(args.rounds):
            for cell in cells:
                cell.run_theirs(peers, 1, args.repetitions)
            mine = ours(args, "-p", "0", "-n", str(args.tokens if depth in depths else 0), "--rows", ",".join(map(str, rows)) if depth in row_depths else "0",
                        "-d", str(depth), "-r", str(args.repetitions))
            for cell in cells:
                cell.take_ours(mine[cell.flags + (f" @ d{depth}" if depth else "")])
        for cell in cells:
            report(cell)
    for n in prefill:
        cell = Cell(f"prefill {n}", f"pp{n}", lambda peer: peer_prefill(peer, n))
        for _ in range(args.prefill_rounds):
            cell.run_theirs(peers, 0, 1)
            cell.take_ours(ours(args, "-p", str(n), "-n", "0", "-r", "1" if n > 1000 else "3")[cell.flags])
        report(cell)


if __name__ == "__main__":
    sys.exit(main())
