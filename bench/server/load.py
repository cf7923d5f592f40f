#!/usr/bin/env python3
"""Many clients at once against `specextend serve`, for a while: is every answer the one the request gets alone, does no
stream fall silent, does the server's memory stay flat, and does it forget clients that are killed?

    bench/server/load.py --program build/release/apps/specextend --streams 32 --seconds 300 [--kill] [-- -c 8192 ...]
    bench/server/load.py --url http://127.0.0.1:8080 --pid 1234
    bench/server/load.py --program build/release/apps/specextend --streams 32 --seconds 600 --keys 2 --cancel 0.2 --drafts both

Each request is first answered alone and whole. Then streams draw requests at random; text, reasons, log-probabilities
and counts must be equal. Prompts are pieces of a text, a third of them from its beginning, so that caches are shared.
With --kill clients are processes, most of which are killed (SIGKILL) at a random moment; afterwards nothing may run
or wait, and there may be no more descriptors than before. --cancel closes a share of the streams while they run, and
--keys gives the clients different API keys in turn. Flags of the server follow `--`. Exit status 1 if anything is
wrong.

--drafts both runs four parts of half the seconds each against one server: all requests with drafts, without, with,
without. So a machine that changes its speed does so for both. Clients draw the same requests in the first two parts,
and others, the same ones, in the last two. The answers must be the same with and without. Compared are, over both
parts of a kind together,
  - the tokens of whole answers per second, from the first request of a part to its last answer, and
  - the 95th percentile of the seconds per token: where an event of a stream with text brings k tokens more than the one
    before it, which came t seconds earlier, that is k times t/k.
With drafts there must be at least --slower SHARE times the tokens per second without, and that percentile may be at
most the one without divided by SHARE.
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
                        help="requests with drafts: every second one, all, none, or in turn all and none (%(default)s)")
    parser.add_argument("--slower", type=float, default=0.97, metavar="SHARE",
                        help="with --drafts both: this share of the speed without drafts is enough (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="the figures, too")
    parser.add_argument("flags", nargs="*", help="of the server")
    return parser.parse_args()


def make_requests(server, options):
    """Pairs of a path and a body, of every kind that must not notice its company. Presets are asked for by name only
    where drafts are mixed: a comparison is of the server's own choice."""
    dice = random.Random(options.seed)
    with open(options.text) as file:
        tokens = server.tokens_of(file.read())
    tokens *= 1 + 2 * options.longest // len(tokens)
    presets = server.get("/props").get("presets") or [] if options.drafts == "mixed" else []
    requests = []
    for i in range(options.requests):
        length = round(math.exp(dice.uniform(math.log(options.shortest), math.log(options.longest))))
        length = [options.shortest, options.longest][i] if i < 2 else length
        start = 0 if i % 3 == 0 else dice.randrange(len(tokens) - length)
        piece = tokens[start:start + length]
        body = {"max_tokens": dice.randint(min(16, options.tokens), options.tokens), "seed": i, "ignore_eos": i % 4 != 0,
                "temperature": [0, 0.7, 1.0][(i + i // 9) % 3],
                "speculate": i % 2 == 0}
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


def drafted(requests, drafts):
    """The same requests, all of them or none with drafts."""
    return requests if drafts == "mixed" else [(path, body | {"speculate": drafts == "on"}) for path, body in requests]


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
    """The outcome and how the time went: first text, longest silence of any kind and after the first text, comments,
    the gaps between events with text, each with the tokens of the second one. `cancel_after`: events after which the
    client leaves."""
    path, body = request
    options = {"include_usage": True, "continuous_usage_stats": True}
    outcome, tokens, spoken, comments, finished = [], None, 0, 0, False
    begin = last = time.monotonic()
    first = last_text = None
    silence = text_silence = 0.0
    gaps, events = [], 0
    for event in server.stream(path, body | {"stream_options": options}):
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
        if event.data.get("usage"):
            tokens = event.data["usage"]["completion_tokens"]
        if text_of(event):
            first = first or event.time
            if last_text:
                gaps.append((event.time - last_text, (tokens or 0) - spoken))
                text_silence = max(text_silence, gaps[-1][0])
            last_text, spoken = event.time, tokens or 0
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

    def __init__(self, server, requests, alone, options, seed=0):
        self.server, self.requests, self.alone, self.options, self.seed = server, requests, alone, options, seed
        self.lock = threading.Lock()
        self.errors, self.times = [], []
        self.answers = self.killed = self.cancelled = self.differ = self.tokens = 0
        self.done = []  # when answers ended, and their tokens
        self.usual = 1.0  # seconds of a client that lives, for the moment of a kill
        self.seconds = 0.0

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
        begin = time.monotonic()
        end = begin + seconds

        def client(number):
            dice = random.Random(self.seed * 1000 + number)
            server = self.server.clients[number % len(self.server.clients)]
            while time.monotonic() < end and len(self.errors) < 20:
                index = dice.randrange(len(self.requests))
                cancel_after = dice.randrange(12) if dice.random() < self.options.cancel else None
                self.one_process(index, dice) if self.options.kill else self.one(index, server, cancel_after)

        together(client, range(self.options.streams))
        self.seconds = time.monotonic() - begin


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


def part(values, percent):
    """A percentile of sorted values: the least of them that so many are not above."""
    return values[max(0, math.ceil(len(values) * percent / 100) - 1)]


def figures_of(loads, drafts):
    """What one or several loads saw, as one."""
    times = [one for load in loads for one in load.times]
    seconds, tokens = sum(load.seconds for load in loads), sum(load.tokens for load in loads)
    figures = {"drafts": drafts, "seconds": seconds, "tokens": tokens, "tokens_per_second": tokens / seconds}
    figures |= {key: sum(getattr(load, key) for load in loads) for key in ("answers", "killed", "cancelled", "differ")}
    figures["errors"] = sum(len(load.errors) for load in loads)
    if not times:
        return figures
    figures |= {f"longest_{key}": max(t[key] for t in times) for key in ("first", "silence", "text_silence")}
    figures["median_first"] = statistics.median(t["first"] for t in times)
    figures["comments"] = sum(t["comments"] for t in times)
    gaps = sorted(gap for t in times for gap, _ in t["gaps"])
    per_token = sorted(gap / k for t in times for gap, k in t["gaps"] for _ in range(k))
    for name, values in (("gap", gaps), ("per_token", per_token)):
        if len(values) > 20:
            figures |= {f"{name}_p50": part(values, 50), f"{name}_p95": part(values, 95)}
    return figures


def show(of):
    row("load", f"drafts: {of['drafts']}; {of['seconds']:.0f} s: {of['answers']} answers, {of['killed']} clients "
        f"killed, {of['cancelled']} streams cancelled, {of['errors']} errors, {of['differ']} differ, "
        f"{of['tokens_per_second']:.1f} tokens/s")
    if "median_first" in of:
        row("first text", f"after {of['median_first']:.2f} s (median), {of['longest_first']:.2f} s at most")
        row("silence", f"{of['longest_silence']:.2f} s at most, {of['longest_text_silence']:.2f} s within a text; "
            f"{of['comments']} keep-alive comments")
    for name, what in (("gap", "between two events of a stream with text"), ("per_token", "per token")):
        if f"{name}_p95" in of:
            row("gaps", f"{what}: {1000 * of[f'{name}_p50']:.1f} ms (median), {1000 * of[f'{name}_p95']:.1f} ms (p95)")


def compare(on, off, least):
    """How the figures with drafts compare with those without, and what is slower than the least share allows."""
    if not all("per_token_p95" in one for one in (on, off)):
        return {}, ["too few tokens to compare drafts with none"]
    speed = on["tokens_per_second"] / off["tokens_per_second"]
    token = on["per_token_p95"] / off["per_token_p95"]
    row("drafts", f"{on['tokens_per_second']:.1f} tokens/s with, {off['tokens_per_second']:.1f} without: {speed:.3f}; "
        f"p95 of a token {1000 * on['per_token_p95']:.1f} ms with, {1000 * off['per_token_p95']:.1f} without: "
        f"{token:.3f}; of a gap {1000 * on['gap_p95']:.1f} and {1000 * off['gap_p95']:.1f}")
    wrong = []
    if speed < least:
        wrong.append(f"with drafts there are {speed:.3f} times the tokens per second without")
    if token * least > 1:
        wrong.append(f"with drafts p95 of the seconds per token is {token:.3f} times that without")
    return {"speed": speed, "per_token_p95": token}, wrong


def watch_memory(server, samples, done, seconds, options):
    """The rows and figures of the memory, and what is wrong with it. `done`: when answers ended, and their tokens."""
    for at in range(0, int(seconds) + 1, 60):
        near = min(samples, key=lambda sample: abs(sample[0] - at))[1]
        spoken = sum(tokens for end, tokens in done if at <= end < at + 60)
        rest = near["whole"] - near["cells"] - near["states"]
        row("minute", f"{at // 60}: {near['whole']:.0f} MiB: {near['cells']:.0f} of cells, {near['states']:.0f} of "
            f"saved states, {rest:.0f} of everything else; {spoken} tokens of answers")
    memory = growth(rest_of(samples), options.seconds / 5 if options.warm_up is None else options.warm_up)
    row("memory", f"beside cells and saved states {memory['begin']:.1f} MiB after the warm-up, {memory['end']:.1f} at "
        f"the end, {memory['most']:.1f} at most; {memory['slope_per_minute']:+.2f} MiB per minute; "
        f"{max(m['whole'] for _, m in samples):.1f} in all at most")
    grew = memory["growth"] > options.rss_allow >= 0
    return memory, [f"memory grew by {memory['growth']:.1f} MiB after the warm-up"] if grew else []


def run_parts(server, requests, alone, options):
    """The loads one after the other, each with its kind of drafts."""
    both = options.drafts == "both"
    loads = []
    for number, drafts in enumerate(["on", "off"] * 2 if both else [options.drafts]):
        load = Load(server, drafted(requests, drafts), alone, options, seed=100 * options.seed + number // 2)
        load.run(options.seconds / 2 if both else options.seconds)
        server.wait_until_idle()
        loads.append((drafts, load))
    return loads


def run(server, options):
    """All figures and a list of what is wrong."""
    problems = []
    descriptors = server.descriptors() if server.pid else None
    slots = server.get("/props")["total_slots"]
    requests = make_requests(server, options)
    row("server", f"{server.url}, {slots} slots; {len(requests)} requests with prompts of {options.shortest} to {options.longest} tokens")
    begin = time.monotonic()
    first = "on" if options.drafts == "both" else options.drafts
    alone = [ask_alone(server, request) for request in drafted(requests, first)]
    row("alone", f"{sum(a['tokens'] for a in alone)} tokens in {time.monotonic() - begin:.1f} s")
    together(lambda _: ask_streaming(server, requests[1]), range(slots))  # every slot has held the longest once
    server.wait_until_idle()

    begin = time.monotonic()
    with Watcher(server) if server.pid else contextlib.nullcontext() as watcher:
        loads = run_parts(server, requests, alone, options)
    seconds = time.monotonic() - begin
    check_free(server, descriptors, problems.append)
    if options.kill:  # all slots serve again, and as before
        load = loads[-1][1]
        options.kill, killed = False, load.killed
        together(load.one, [i % len(requests) for i in range(options.streams)])
        if killed == 0 or load.answers == 0:
            problems.append(f"{killed} clients killed, {load.answers} lived: nothing was tested")

    problems += [error for _, load in loads for error in load.errors]
    problems += [f"no answer, drafts: {drafts}" for drafts, load in loads if not load.times]
    if options.cancel and not any(load.cancelled for _, load in loads):
        problems.append("no stream was cancelled: nothing was tested")
    kinds = list(dict.fromkeys(drafts for drafts, _ in loads))
    by_kind = {kind: figures_of([load for drafts, load in loads if drafts == kind], kind) for kind in kinds}
    figures = {"streams": options.streams, "slots": slots, "seconds": seconds}
    for of in by_kind.values():
        show(of)
    if options.drafts == "both":
        ratios, slower = compare(by_kind["on"], by_kind["off"], options.slower)
        problems += slower
        figures |= {**by_kind, "on_to_off": ratios, "parts": [figures_of([load], drafts) for drafts, load in loads]}
    else:
        figures |= by_kind[options.drafts]
    if watcher:
        done = [(end - begin, tokens) for _, load in loads for end, tokens in load.done]
        figures["memory_samples"] = watcher.samples
        figures["memory_mib"], grew = watch_memory(server, watcher.samples, done, seconds, options)
        problems += grew
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
    figures = run_once(options)
    for problem in figures["problems"]:
        row("WRONG", problem)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=1)
    row("verdict", "wrong" if figures["problems"] else "good")
    return 1 if figures["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
