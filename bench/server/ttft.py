#!/usr/bin/env python3
"""How long until the first token, and how many tokens per second, with and without speculation.

    bench/server/ttft.py --program build/release/apps/specextend [--model FILE] [--peer python] [-- --spec eagle3 ...]

First token: one request at a time, no cache shared, both ways in turn (which goes first alternates), medians and the
median of the pairs' ratios. Throughput: 1, 4, 8 and 16 streams at once, all generated tokens over the time from the first
request to the last byte, prompts included. --peer names a Python with llama-cpp-python[server]; its server then runs the
same with the same file and threads, with flash attention and without, and each figure is of the better. Flags of the server follow `--`.
"""
import argparse
import contextlib
import concurrent.futures
import json
import math
import random
import socket
import statistics
import subprocess
import sys
import time

from serving import PATIENCE, Remote, Server, text_of


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="specextend")
    parser.add_argument("--model", help="the default model without it")
    parser.add_argument("--text", default="/usr/share/common-licenses/GPL-3", help="where prompts come from (%(default)s)")
    parser.add_argument("--prompts", type=int, nargs="*", default=[500, 2000, 6000], help="tokens (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, help="of each first token (%(default)s)")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4, 8, 16], help="at once (%(default)s)")
    parser.add_argument("--prompt", type=int, default=500, help="tokens of a prompt for throughput (%(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer for throughput (%(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="of the servers (0: one per core)")
    parser.add_argument("--peer", metavar="PYTHON", help="one that can run `-m llama_cpp.server`")
    parser.add_argument("--json", metavar="FILE", help="the figures, too")
    parser.add_argument("flags", nargs="*", help="of the server")
    return parser.parse_args()


class Prompts:
    """Pieces of a text with a given number of tokens, no two with the same beginning."""

    def __init__(self, server, path):
        with open(path) as file:
            self.tokens = server.tokens_of(file.read())
        self.server, self.dice = server, random.Random(1)

    def piece(self, length):
        start = self.dice.randrange(len(self.tokens))
        tokens = (self.tokens * (2 + length // len(self.tokens)))[start:start + length]
        return self.server.post("/detokenize", {"tokens": tokens})["content"]


def ask(server, prompt, tokens, **more):
    """Seconds to the first text and in all, and how many tokens came."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream_options": {"include_usage": True}} | more
    begin = time.monotonic()
    first = last = None
    generated = 0
    for event in server.stream("/v1/completions", body):
        last = event.time
        if text_of(event):
            first = first or event.time
            generated += 1  # a peer without usage in its streams sends a token per event
        if event.data and event.data.get("usage"):
            generated = event.data["usage"]["completion_tokens"]
    return {"first": (first or last) - begin, "all": last - begin, "tokens": generated}


OURS = {"ignore_eos": True, "cache_prompt": False}
WAYS = {"with": OURS | {"speculate": True}, "without": OURS | {"speculate": False}}


def first_tokens(server, prompts, options):
    rows = []
    for length in options.prompts:
        seconds = {"with": [], "without": []}
        for repetition in range(options.repetitions + 1):
            for way in sorted(WAYS, reverse=repetition % 2 == 1):
                time_ = ask(server, prompts.piece(length), 8, **WAYS[way])["first"]
                if repetition > 0:  # the first is for the caches of the machine
                    seconds[way].append(time_)
        ratios = [a / b for a, b in zip(seconds["with"], seconds["without"])]
        rows.append({"prompt": length, "with": statistics.median(seconds["with"]), "without": statistics.median(seconds["without"]),
                     "ratio": statistics.median(ratios), "seconds": seconds})
    return rows


def throughput(server, prompts, options, streams, **more):
    pieces = [prompts.piece(options.prompt) for _ in range(streams)]
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        answers = list(pool.map(lambda piece: ask(server, piece, options.tokens, **more), pieces))
    return sum(a["tokens"] for a in answers) / (time.monotonic() - begin)


@contextlib.contextmanager
def peer_server(options, model, context, flash):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as place:
        port = place.getsockname()[1]
    command = [options.peer, "-m", "llama_cpp.server", "--model", model, "--port", str(port), "--n_ctx", str(context),
               "--flash_attn", flash]
    if options.threads:
        command += ["--n_threads", str(options.threads), "--n_threads_batch", str(options.threads)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        remote, end = Remote(f"http://127.0.0.1:{port}"), time.monotonic() + PATIENCE
        while True:
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{options.peer} -m llama_cpp.server does not run (its package: llama-cpp-python[server])")
            with contextlib.suppress(OSError):
                if remote.request("GET", "/v1/models")[0] == 200:
                    break
            time.sleep(0.2)
        yield remote
    finally:
        process.terminate()
        process.wait()


def run_peer(prompts, options, model, context, figures):
    """Adds its figures, each the better of flash attention on and off."""
    for flash in ("true", "false"):
        with peer_server(options, model, context, flash) as peer:
            for row in figures["first_token"]:
                times = [ask(peer, prompts.piece(row["prompt"]), 8)["first"] for _ in range(options.repetitions + 1)]
                row["peer"] = min(row.get("peer", math.inf), statistics.median(times[1:]))
            for row in figures["throughput"]:
                row["peer"] = max(row.get("peer", 0), throughput(peer, prompts, options, row["streams"]))


def show(figures):
    def cell(value, digits):
        return f"{value:14.{digits}f}" if value is not None else f"{'':14}"
    print(f"{'prompt tokens':>14}{'with, s':>14}{'without, s':>14}{'ratio':>14}{'llama.cpp, s':>14}")
    for row in figures["first_token"]:
        print(f"{row['prompt']:14}{cell(row['with'], 3)}{cell(row['without'], 3)}{cell(row['ratio'], 3)}{cell(row.get('peer'), 3)}")
    print(f"{'streams':>14}{'with, tok/s':>14}{'without':>14}{'ratio':>14}{'llama.cpp':>14}")
    for row in figures["throughput"]:
        print(f"{row['streams']:14}{cell(row['with'], 1)}{cell(row['without'], 1)}{cell(row['with'] / row['without'], 3)}"
              f"{cell(row.get('peer'), 1)}")


def main():
    options = arguments()
    most = max([1, *options.streams])
    context = max([options.prompt + options.tokens, *options.prompts]) + 256
    flags = ["-q", "-c", str(context), "--parallel", str(most), *(["-m", options.model] if options.model else []),
             *(["-t", str(options.threads)] if options.threads else []), *options.flags]
    with Server(options.program, *flags) as server:
        prompts = Prompts(server, options.text)
        figures = {"model": server.get("/v1/models")["data"][0]["id"], "flags": options.flags,
                   "first_token": first_tokens(server, prompts, options), "throughput": []}
        for streams in options.streams:
            speeds = {way: throughput(server, prompts, options, streams, **WAYS[way]) for way in WAYS}
            figures["throughput"].append({"streams": streams, **speeds})
        if options.peer:
            if not options.model:
                raise SystemExit("--peer needs --model")
            run_peer(prompts, options, options.model, context, figures)
    show(figures)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
