#!/usr/bin/env python3
"""Many clients at once against `specextend serve`, for a while: is every answer the one the request gets alone, does no
stream fall silent, does the server's memory stay flat, and does it forget clients that are killed?

    bench/server/load.py --program build/release/apps/specextend --streams 32 --seconds 300 [--kill] [-- -c 8192 ...]
    bench/server/load.py --url http://127.0.0.1:8080 --pid 1234
    bench/server/load.py --program build/release/apps/specextend --streams 32 --seconds 600 --keys 2 --cancel 0.2 --drafts both

Each request is first answered alone and whole. Then streams draw requests at random; text, reasons, log-probabilities and
counts must be equal. Prompts are pieces of a text, a third of them from its beginning, so that caches are shared. With
--kill clients are processes, most of which are killed (SIGKILL) at a random moment; afterwards nothing may run or wait, and
there may be no more descriptors than before. --cancel closes a share of the streams while they run, --keys gives the clients
different API keys in turn, and --drafts both runs all of it twice, with drafts and without, to compare the gaps of the streams. Flags of the server follow `--`. Exit status 1 if anything is wrong.
"""
import argparse
import concurrent.futures
import contextlib
import json
import math
import random
import statistics
import subprocess
import sys
import threading
import time

from serving import Refused, Remote, Server, Watcher, text_of

SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["free", "bound"]}, "good": {"type": "boolean"}},
          "required": ["kind", "good"], "additionalProperties": False}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--program", help="specextend; a server is started and ended")
    where.add_argument("--url", help="a server that runs already")
    parser.add_argument("--pid", type=int, help="its process, for memory and descriptors")
    parser.add_argument("--text", default="/usr/share/common-licenses/GPL-3", help="where prompts come from (%(default)s)")
    parser.add_argument("--streams", type=int, default=32, help="clients at a time (%(default)s)")
    parser.add_argument("--seconds", type=float, default=300, help="how long (%(default)s)")
    parser.add_argument("--warm-up", type=float, help="of them, before memory must be flat (a fifth)")
    parser.add_argument("--requests", type=int, default=48, help="different requests (%(default)s)")
    parser.add_argument("--shortest", type=int, default=100, help="prompt, tokens (%(default)s)")
    parser.add_argument("--longest", type=int, default=6000, help="prompt, tokens (%(default)s)")
    parser.add_argument("--tokens", type=int, default=96, help="longest answer (%(default)s)")
    parser.add_argument("--stall", type=float, default=30, help="seconds without a byte that are too many (%(default)s)")
    parser.add_argument("--rss-allow", type=float, default=16,
                        help="growth after the warm-up, MiB, of what is neither K/V cells nor saved states; -1: any (%(default)s)")
    parser.add_argument("--kill", action="store_true", help="kill clients at random")
    parser.add_argument("--cancel", type=float, default=0, help="share of streams that their client closes (%(default)s)")
    parser.add_argument("--keys", type=int, default=0, help="API keys of a server that is started (%(default)s)")
    parser.add_argument("--drafts", choices=("mixed", "on", "off", "both"), default="mixed",
                        help="which requests are drafted: every second one, all, none, or one run of each (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="the figures, too")
    parser.add_argument("flags", nargs="*", help="of the server")
    return parser.parse_args()


def make_requests(server, options):
    """Pairs of a path and a body, of every kind that must not notice its company."""
    dice = random.Random(options.seed)
    with open(options.text) as file:
        tokens = server.tokens_of(file.read())
    tokens *= 1 + 2 * options.longest // len(tokens)
    presets = server.get("/props").get("presets") or []
    requests = []
    for i in range(options.requests):
        length = round(math.exp(dice.uniform(math.log(options.shortest), math.log(options.longest))))
        length = [options.shortest, options.longest][i] if i < 2 else length
        start = 0 if i % 3 == 0 else dice.randrange(len(tokens) - length)
        piece = tokens[start:start + length]
        body = {"max_tokens": dice.randint(min(16, options.tokens), options.tokens), "seed": i, "ignore_eos": i % 4 != 0,
                "temperature": [0, 0.7, 1.0][(i + i // 9) % 3],
                "speculate": {"mixed": i % 2 == 0, "on": True, "off": False}[options.drafts]}
        extras = [{}, {"top_p": 0.9, "top_k": 40}, {"frequency_penalty": 0.5}, {"min_p": 0.05, "n": 2}, {"stop": [" the", "\n\n"]},
                  {"repeat_penalty": 1.2}, {"spec_nodes": 4, "spec_depth": 2}, {"logprobs": True, "top_logprobs": 2},
                  {"response_format": {"type": "json_schema", "json_schema": {"name": "licence", "schema": SCHEMA}}}]
        body |= extras[i % len(extras)]
        if presets and i % 4 == 2:
            body["spec_preset"] = presets[i // 4 % len(presets)]
        if "logprobs" in body or i % 5 == 4:  # a chat; its template adds a few tokens
            text = server.post("/detokenize", {"tokens": piece[:max(1, length - 64)]})["content"]
            requests.append(("/v1/chat/completions", body | {"messages": [{"role": "user", "content": text}]}))
        else:
            requests.append(("/v1/completions", body | {"prompt": piece}))
    return requests


def add_choice(outcome, choice):
    """A choice of a whole answer or of a chunk, joined to what came before."""
    while len(outcome) <= choice["index"]:
        outcome.append({"text": "", "reason": None, "logprobs": {}})
    mine = outcome[choice["index"]]
    part = choice.get("message") or choice.get("delta") or choice
    mine["text"] += part.get("content") or part.get("text") or ""
    mine["reason"] = choice.get("finish_reason") or mine["reason"]
    for key, values in (choice.get("logprobs") or {}).items():
        mine["logprobs"].setdefault(key, []).extend(values or [])


def ask_alone(server, request):
    path, body = request
    answer = server.post(path, body)
    outcome = []
    for choice in answer["choices"]:
        add_choice(outcome, choice)
    return {"choices": outcome, "tokens": answer["usage"]["completion_tokens"]}


class Cancelled(Exception):
    """The client has closed its stream."""


def ask_streaming(server, request, cancel_after=None):
    """The outcome and how the time went: first text, longest silence of any kind and after the first text, comments, gaps.
    `cancel_after`: events after which the client leaves."""
    path, body = request
    outcome, tokens, comments, finished = [], None, 0, False
    begin = last = time.monotonic()
    first = last_text = None
    silence = text_silence = 0.0
    gaps, events = [], 0
    for event in server.stream(path, body | {"stream_options": {"include_usage": True}}):
        events += 1
        if cancel_after is not None and events > cancel_after:
            raise Cancelled
        silence = max(silence, event.time - last)
        last = event.time
        comments += event.comment
        finished |= event.done
        if not event.data:
            continue
        if "error" in event.data:
            raise RuntimeError(f"in the stream: {event.data['error']}")
        for choice in event.data["choices"]:
            add_choice(outcome, choice)
        if text_of(event):
            first = first or event.time
            if last_text:
                gaps.append(event.time - last_text)
                text_silence = max(text_silence, gaps[-1])
            last_text = event.time
        if event.data.get("usage"):
            tokens = event.data["usage"]["completion_tokens"]
    if not finished:
        raise RuntimeError("the stream ended without [DONE]")
    times = {"first": (first or last) - begin, "all": last - begin, "silence": silence, "text_silence": text_silence,
             "comments": comments, "gaps": gaps}
    return {"choices": outcome, "tokens": tokens}, times


def client_process():
    """`--client`: one request from standard input, its outcome to standard output; made to be killed."""
    url, headers, request = json.load(sys.stdin)
    server = Remote(url)
    server.headers = headers
    json.dump(ask_streaming(server, request), sys.stdout)


class Load:
    """The clients and what they saw."""

    def __init__(self, server, requests, alone, options):
        self.server, self.requests, self.alone, self.options = server, requests, alone, options
        self.lock = threading.Lock()
        self.errors, self.times = [], []
        self.answers = self.killed = self.cancelled = self.differ = self.tokens = 0
        self.done = []  # when answers ended, and their tokens
        self.usual = 1.0  # seconds of a client that lives, for the moment of a kill

    def wrong(self, index, what):
        with self.lock:
            self.errors.append(f"request {index}: {what}")

    def judge(self, index, outcome, times):
        if outcome != self.alone[index]:
            with self.lock:
                self.differ += 1
            self.wrong(index, f"differs from alone: {json.dumps(outcome)[:300]} | {json.dumps(self.alone[index])[:300]}")
        if times["silence"] > self.options.stall:
            self.wrong(index, f"silent for {times['silence']:.1f} s")
        with self.lock:
            self.answers += 1
            self.tokens += outcome["tokens"] or 0
            self.done.append((time.monotonic(), outcome["tokens"] or 0))
            self.times.append(times)
            self.usual = statistics.median(t["all"] for t in self.times[-50:])

    def one(self, index, server=None, cancel_after=None):
        try:
            self.judge(index, *ask_streaming(server or self.server, self.requests[index], cancel_after))
        except Cancelled:
            with self.lock:
                self.cancelled += 1
        except (Refused, OSError, ValueError, KeyError, RuntimeError) as error:
            self.wrong(index, f"{type(error).__name__}: {error}")

    def one_process(self, index, dice):
        kill_after = dice.uniform(0.1, max(0.3, 1.5 * self.usual)) if dice.random() < 0.7 else None
        client = subprocess.Popen([sys.executable, __file__, "--client"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        order = json.dumps([self.server.url, self.server.headers, self.requests[index]])
        try:
            said, complaint = client.communicate(order, timeout=kill_after)
        except subprocess.TimeoutExpired:
            client.kill()
            client.communicate()
            with self.lock:
                self.killed += 1
            return
        if client.returncode != 0:
            return self.wrong(index, f"client: {complaint.strip().splitlines()[-1:]}")
        self.judge(index, *json.loads(said))

    def run(self, seconds):
        end = time.monotonic() + seconds

        def client(number):
            dice = random.Random(self.options.seed * 1000 + number)
            server = self.server.clients[number % len(self.server.clients)]
            while time.monotonic() < end and len(self.errors) < 20:
                index = dice.randrange(len(self.requests))
                cancel_after = dice.randrange(12) if dice.random() < self.options.cancel else None
                self.one_process(index, dice) if self.options.kill else self.one(index, server, cancel_after)

        together(client, range(self.options.streams))


def together(function, items):
    with concurrent.futures.ThreadPoolExecutor(len(items)) as pool:
        for done in [pool.submit(function, item) for item in items]:
            done.result()


def check_free(server, descriptors, wrong):
    """Nothing is left of the clients; keep-alive connections get time to go."""
    try:
        server.wait_until_idle(60)
    except AssertionError:
        wrong(f"{server.running()} run and {server.waiting()} wait after the last client")
    status, _, slots = server.request("GET", "/slots")
    if status == 200 and any(slot["is_processing"] for slot in slots):
        wrong(f"slots are busy after the last client: {slots}")
    if descriptors is not None:
        with contextlib.suppress(AssertionError):
            server.wait_until("descriptors", lambda: server.descriptors() <= descriptors, 60)
        if server.descriptors() > descriptors:
            wrong(f"{server.descriptors()} descriptors, {descriptors} before")


def rest_of(samples):
    """What is neither cells, which come and go with the texts, nor saved states, which have a bound."""
    return [(t, m["whole"] - m["cells"] - m["states"]) for t, m in samples]


def growth(samples, warm_up):
    """MiB from the first to the last quarter after the warm-up (medians), MiB per minute (least squares), begin, end, most."""
    flat = [(t, rss) for t, rss in samples if t >= warm_up] or samples[-1:]
    quarter = max(1, len(flat) // 4)
    begin, end = (statistics.median(r for _, r in part) for part in (flat[:quarter], flat[-quarter:]))
    slope = 60 * statistics.linear_regression(*zip(*flat)).slope if len(flat) > 2 else 0.0
    return {"begin": begin, "end": end, "growth": end - begin, "most": max(r for _, r in flat), "slope_per_minute": slope}


def row(name, text):
    print(f"{name:<12}{text}", flush=True)


def run(server, options):
    """All figures and a list of what is wrong."""
    problems = []
    descriptors = server.descriptors() if server.pid else None
    slots = server.get("/props")["total_slots"]
    requests = make_requests(server, options)
    row("server", f"{server.url}, {slots} slots; {len(requests)} requests with prompts of {options.shortest} to {options.longest} tokens")
    begin = time.monotonic()
    alone = [ask_alone(server, request) for request in requests]
    row("alone", f"{sum(a['tokens'] for a in alone)} tokens in {time.monotonic() - begin:.1f} s")
    together(lambda _: ask_streaming(server, requests[1]), range(slots))  # every slot has held the longest once
    server.wait_until_idle()

    load = Load(server, requests, alone, options)
    warm_up = options.seconds / 5 if options.warm_up is None else options.warm_up
    begin = time.monotonic()
    with Watcher(server) if server.pid else contextlib.nullcontext() as watcher:
        load.run(options.seconds)
    seconds = time.monotonic() - begin
    check_free(server, descriptors, problems.append)
    if options.kill:  # all slots serve again, and as before
        options.kill, killed = False, load.killed
        together(load.one, [i % len(requests) for i in range(options.streams)])
        if killed == 0 or load.answers == 0:
            problems.append(f"{killed} clients killed, {load.answers} lived: nothing was tested")

    problems += load.errors
    figures = {"streams": options.streams, "seconds": seconds, "slots": slots, "answers": load.answers, "killed": load.killed,
               "cancelled": load.cancelled, "drafts": options.drafts, "errors": len(load.errors), "differ": load.differ, "tokens_per_second": load.tokens / seconds}
    row("load", f"{options.streams} streams, {seconds:.0f} s: {load.answers} answers, {load.killed} clients killed, "
        f"{load.cancelled} streams cancelled, {len(load.errors)} errors, {load.differ} differ, {load.tokens / seconds:.1f} tokens/s")
    if load.times:
        figures |= {f"longest_{k}": max(t[k] for t in load.times) for k in ("first", "silence", "text_silence")}
        figures |= {"median_first": statistics.median(t["first"] for t in load.times), "comments": sum(t["comments"] for t in load.times)}
        row("first text", f"after {figures['median_first']:.2f} s (median), {figures['longest_first']:.2f} s at most")
        gaps = sorted(gap for t in load.times for gap in t["gaps"])
        if len(gaps) > 20:
            figures |= {"gap_p50": gaps[len(gaps) // 2], "gap_p95": gaps[len(gaps) * 95 // 100]}
            row("gaps", f"between two events of a stream with text: {1000 * figures['gap_p50']:.1f} ms (median), "
                f"{1000 * figures['gap_p95']:.1f} ms (p95); drafts: {options.drafts}")
        row("silence", f"{figures['longest_silence']:.2f} s at most, {figures['longest_text_silence']:.2f} s within a text; "
            f"{figures['comments']} keep-alive comments")
        if options.cancel and not load.cancelled:
            problems.append("no stream was cancelled: nothing was tested")
    else:
        problems.append("no answer")
    if watcher:
        for at in range(0, int(seconds) + 1, 60):
            near = min(watcher.samples, key=lambda sample: abs(sample[0] - at))[1]
            spoken = sum(tokens for end, tokens in load.done if at <= end - begin < at + 60)
            row("minute", f"{at // 60}: {near['whole']:.0f} MiB: {near['cells']:.0f} of cells, {near['states']:.0f} of saved states, "
                f"{near['whole'] - near['cells'] - near['states']:.0f} of everything else; {spoken} tokens of answers")
        figures["memory_samples"] = watcher.samples
        memory = figures["memory_mib"] = growth(rest_of(watcher.samples), warm_up)
        row("memory", f"beside cells and saved states {memory['begin']:.1f} MiB after the warm-up, {memory['end']:.1f} at the end, "
            f"{memory['most']:.1f} at most; {memory['slope_per_minute']:+.2f} MiB per minute; "
            f"{max(m['whole'] for _, m in watcher.samples):.1f} in all at most")
        if memory["growth"] > options.rss_allow >= 0:
            problems.append(f"memory grew by {memory['growth']:.1f} MiB after the warm-up")
        row("descriptors", f"{server.descriptors()}, {descriptors} before")
    return figures | {"problems": problems}


def run_once(options):
    """A server, its clients, one for each key, and the load."""
    keys = [f"load-key-{i}" for i in range(options.keys)]
    more = [flag for key in keys[1:] for flag in ("--api-key", key)]
    server = Server(options.program, *options.flags, *more, key=keys[0] if keys else None) if options.program else Remote(
        options.url, options.pid)
    server.clients = [server] + [Remote(server.url, key=key) for key in keys[1:]]
    with server if options.program else contextlib.nullcontext():
        return run(server, options)


def main():
    if sys.argv[1:] == ["--client"]:
        return client_process()
    options = arguments()
    modes = ["on", "off"] if options.drafts == "both" else [options.drafts]
    runs = [run_once(argparse.Namespace(**{**vars(options), "drafts": mode})) for mode in modes]
    figures = runs[0] if len(runs) == 1 else {"runs": runs, "problems": [p for one in runs for p in one["problems"]]}
    if len(runs) == 2 and all("gap_p95" in one for one in runs):
        on, off = runs
        row("drafts", f"p95 gap {1000 * on['gap_p95']:.1f} ms with, {1000 * off['gap_p95']:.1f} ms without; "
            f"{on['tokens_per_second']:.1f} and {off['tokens_per_second']:.1f} tokens/s")
    for problem in figures["problems"]:
        row("WRONG", problem)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=1)
    row("verdict", "wrong" if figures["problems"] else "good")
    return 1 if figures["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
