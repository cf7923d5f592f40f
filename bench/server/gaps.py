#!/usr/bin/env python3
"""How long do the gaps of one key's stream become beside what another key does to the server?

    bench/server/gaps.py --program build/release/apps/specextend [--seconds 4] [--limit 3] [-- -m model.gguf ...]

Before each abuse the stream runs undisturbed for half of the seconds; then it is asked for again, with the same
prompt, while two clients with another key repeat the abuse as fast as they are answered (one client where it holds
connections). Those clients are a process of their own at a low priority, so that what they compute themselves is not
taken for the server's doing. A gap is the time between two events of the stream that bring text; those that come
within a millisecond, as the tokens of a round with drafts do, count as one. Beside the abuse the stream's own key also
asks, about twice a second, for a short answer bound by a small JSON schema that is new each time; printed is how long
its first text takes.

With --limit L, of each abuse
  - p95 and p99 of the gaps beside it may be at most L times the median gap of the undisturbed stream before it (or
    10 ms, where that is more: shorter ones are the timer's and the system's), and
  - the slowest first text beside it at most L times the median of five such requests beside the undisturbed stream, and
    half a second more.
An abuse that exceeds this is measured once more, and the exit status is 1 if it does again. It is 1, with and without
--limit, if an abuse was answered with any other status than those that are expected of it. Grammars and schemas are
different ones each time, so that none is found compiled. `honest` is no abuse: short requests that decode along. Nor are
`long prompts`, 3,000 words each: a step has to share its time with them, and they are measured but not held to L.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import http.client
import itertools
import json
import math
import multiprocessing
import os
import random
import re
import socket
import statistics
import sys
import threading
import time

from serving import PATIENCE, Remote, Server, text_of

LEAST = 0.010  # seconds; shorter gaps are never too long
TOGETHER = 0.001  # events that come so soon after another one came with it: a round with drafts has several tokens
SCHEMAS = itertools.count()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--seconds", type=float, default=4, help="of each abuse, and half of it before (%(default)s)")
    parser.add_argument("--limit", type=float, help="p95 and p99 beside an abuse over the median without, at most")
    parser.add_argument("--only", help="abuses whose names contain this")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--json", metavar="FILE", help="the figures, too")
    parser.add_argument("flags", nargs="*", help="of the server; without a --spec among them it drafts nothing")
    return parser.parse_args()


def alternatives(number, rules=1890):
    """As many rules that begin alike: the compilation is long, and every token has many readings."""
    lines = [f'r{i} ::= "a" [a-z ]' for i in range(rules)]
    any_of = " | ".join(f"r{i}" for i in range(rules))
    return "\n".join([f'root ::= "{number}"? any{{1,100000}}', f"any ::= {any_of}", *lines])


def repeats(number):
    root = f'root ::= " {number}" a3 | " "? [A-Y] [^\\n]{{0,60}}'
    return "\n".join([root, "a1 ::= [a-z ,.]{1,1000}", "a2 ::= a1{1,1000}", "a3 ::= a2{1,1000}"])


def slow_masks(number):
    return f'root ::= "{number}"? ([a-z ]{{1,63}} "."?){{1,127}}'


def properties(number):
    of = {f"name {number} {i}": {"type": "string", "pattern": "^[a-z]{1,60}$"} for i in range(1500)}
    return {"type": "object", "properties": of}


def names(number):
    return {"enum": [f"{i} of {number}, and some text" for i in range(1900)]}


# What a client does once: it gets the server, a number that is another one each time, and when the measurement ends,
# and gives the statuses of its requests.
def completion(**fields):
    """A request with fields that may depend on its number."""
    def ask(server, number, _):
        given = {name: value(number) if callable(value) else value for name, value in fields.items()}
        return [server.request("POST", "/completion", {"prompt": "Hi", "n_predict": 5, "temperature": 0, **given})[0]]
    return ask


def posted(path, make):
    return lambda server, *_: [server.request("POST", path, make())[0]]


def spaces():
    return b'{"prompt": "' + b" " * (15 << 20) + b'"}'


def deep():
    return b'{"prompt": ' + b"[" * 100000


def hello():
    return {"prompt": "Hi", "max_tokens": 5}


def burst(server, number, end):
    """Twenty requests at a time."""
    ask = completion(n_predict=16)
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        return sum(pool.map(lambda _: ask(server, number, end), range(20)), [])


def paths(server, *_):
    tricks = ("/../v1/models", "/%2e%2e/etc/passwd", "/slots/-1", "/v1%2fmodels%00")
    return [server.request("GET", path)[0] for path in tricks]


def rebinding(server, *_):
    """A page whose name leads to this machine and that knows no key, and a page of another origin that knows one."""
    page = {"Host": "evil.example", "Origin": "http://evil.example"}
    without, *known = [server.request("POST", "/v1/completions", hello(), {**page, **more})[0] for more in (
        {"Authorization": "Bearer guess"}, {"Host": "localhost"}, {"Origin": "http://page.example"})]
    return [f"{without} without a key", *known]


def half_closed(server, *_):
    """A whole request by a client that then closes its own side and reads to the end."""
    body = json.dumps(hello()).encode()
    headers = {**server.headers, "Host": "localhost", "Content-Length": len(body)}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection((server.host, server.port), timeout=PATIENCE) as one:
        one.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + body)
        one.shutdown(socket.SHUT_WR)
        text = b"".join(iter(lambda: one.recv(65536), b""))
    told = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", text)]
    return [status for status in told if status != 100] or ["nothing"]


def state(one):
    """Of a connection on which no request is whole: open, closed, or the status that it was closed with."""
    one.settimeout(0)
    try:
        text = one.recv(65536)
    except BlockingIOError:
        return "open"
    except ConnectionError:
        return "closed"
    return int(text.split()[1]) if text else "closed"


def hold(begin, drip):
    """500 connections that send how a request begins, and then bytes, twice a second, if any; new connections after
    four seconds, before the server ends them."""
    def ask(server, _, end):
        with contextlib.ExitStack() as stack:
            where = (server.host, server.port)
            held = [stack.enter_context(socket.create_connection(where)) for _ in range(500)]
            for one in held:
                one.sendall(begin)
            end = min(end, time.monotonic() + 4)
            while time.monotonic() < end:
                for one in held if drip else []:
                    with contextlib.suppress(OSError):
                        one.send(drip)
                time.sleep(0.5)
            return [state(one) for one in held]
    return ask


def long_prompt(server, number, _):
    """3,000 words that no cache has."""
    rng = random.Random(number)
    words = " ".join(rng.choice(("rain", "field", "tax", "light", "report", "seven", "under", "court")) for _ in range(3000))
    return completion(prompt=f"{number} {words}", n_predict=1)(server, number, _)


Abuse = collections.namedtuple("Abuse", "ask expected clients", defaults=({200}, 2))
ABUSES = {
    "honest": Abuse(completion()),
    "burst of a key": Abuse(burst, {200, 429}),
    "grammar, cached": Abuse(completion(grammar=alternatives(0))),
    "grammar, compiled": Abuse(completion(grammar=alternatives)),
    "grammar, nested repeats": Abuse(completion(grammar=repeats)),
    "grammar, slow masks": Abuse(completion(grammar=slow_masks, n_predict=30), {200, 400}),
    "schema, properties": Abuse(completion(json_schema=properties)),
    "schema, names": Abuse(completion(json_schema=names)),
    "16 MiB of spaces": Abuse(posted("/v1/completions", spaces), {400}),
    "100,000 levels of JSON": Abuse(posted("/v1/completions", deep), {400}),
    "another key's prompt": Abuse(completion(prompt="Once upon a time", n_predict=1)),
    "paths": Abuse(paths, {404, 405}),
    "rebinding": Abuse(rebinding, {"401 without a key", 403}),  # the name itself is checked where there are no keys
    "half-closed": Abuse(half_closed),
    "500 idle": Abuse(hold(b"", b""), {"open"}, 1),
    "long prompts": Abuse(long_prompt),
    "slow-loris": Abuse(hold(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ", b"a"), {"open"}, 1),
}
NOT_JUDGED = {"long prompts"}  # no abuse, and work that a step has to share


def repeat(name, url, seconds):
    """The abuse by clients with the other key, until the seconds are over: how many requests got each status. The other
    process runs this."""
    end, abuse, server = time.monotonic() + seconds, ABUSES[name], Remote(url, key="other")

    def client(k):
        told = collections.Counter()
        for number in itertools.count(100000 * k):
            try:
                told.update(abuse.ask(server, number, end))
            except (OSError, http.client.HTTPException) as error:
                told[type(error).__name__] += 1
            if time.monotonic() >= end:
                return told

    with concurrent.futures.ThreadPoolExecutor(abuse.clients) as pool:
        return sum(pool.map(client, range(abuse.clients)), collections.Counter())


@contextlib.contextmanager
def watched(server):
    """A stream that runs as long as the body does, and the list of its gaps."""
    gaps, begun, ending = [], threading.Event(), threading.Event()
    # A greedy text begins to repeat itself after some seconds, and then drafts bring whole passages at long intervals.
    body = {"prompt": "Once upon a time", "max_tokens": -1, "ignore_eos": True, "temperature": 1, "seed": 7}

    def watch():
        last = None
        for event in server.stream("/v1/completions", body):
            if text_of(event):
                if last and event.time - last > TOGETHER:
                    gaps.append(event.time - last)
                    begun.set()
                last = event.time
            if ending.is_set():
                return
        raise RuntimeError("the watched stream ended by itself: a larger --context or fewer --seconds are needed")

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        watching.add_done_callback(lambda _: begun.set())
        begun.wait(PATIENCE)
        gaps.clear()
        try:
            yield gaps
        finally:
            ending.set()
        watching.result()


def first_text(server):
    """Seconds to the first text of a short answer that a new schema binds."""
    parts = {"kind": {"enum": ["free", f"bound {next(SCHEMAS)}"]}, "good": {"type": "boolean"}}
    schema = {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}
    body = {"prompt": "Hi", "max_tokens": 4, "temperature": 0, "json_schema": schema}
    begin = time.monotonic()
    for event in server.stream("/v1/completions", body):
        if text_of(event):
            return event.time - begin
    raise RuntimeError("an answer without a text")


def measure(name, server, abuser, seconds):
    with watched(server) as quiet:
        time.sleep(seconds / 2)
        before = sorted(quiet)
        asked_before = [first_text(server) for _ in range(5)]
    with watched(server) as beside:
        abusing = abuser.submit(repeat, name, server.url, seconds)
        asked = []
        while not concurrent.futures.wait([abusing], 0.4).done:
            asked.append(first_text(server))
        statuses = abusing.result()
    server.wait_until_idle()
    usual, first = statistics.median(asked_before), statistics.median(asked)
    first_texts = {"quiet_first": usual, "first": first, "first_most": max(asked)}
    return figures(before, sorted(beside)) | first_texts | {"statuses": dict(statuses)}


def figures(quiet, gaps):
    """What is told of two sorted lists of gaps, seconds; `above_3x`: the share above three medians of the first."""
    def part(of, percent):
        return of[math.ceil(len(of) * percent / 100) - 1]
    median = part(quiet, 50)
    above = sum(gap > 3 * median for gap in gaps) / len(gaps)
    return {"quiet_p50": median, "quiet_p95": part(quiet, 95), "p50": part(gaps, 50), "p95": part(gaps, 95),
            "p99": part(gaps, 99), "most": gaps[-1], "above_3x": above, "gaps": len(gaps)}


def show(name, of):
    def cell(key, width=6):
        return f"{1000 * of[key]:{width}.1f}"

    def times(key):
        return f"{cell(key)} ms = {of[key] / of['quiet_p50']:.2f}x"
    print(f"{name:24} gaps {cell('quiet_p50', 5)} ms (p95 {cell('quiet_p95', 5)}); beside it {cell('p50', 5)}, "
          f"p95 {times('p95')}, p99 {times('p99')}, most {times('most')}, {100 * of['above_3x']:.1f} % of {of['gaps']} "
          f"above 3x; first text {cell('quiet_first')} ms; beside it {cell('first')}, most {cell('first_most')}; "
          f"{of['statuses']}", flush=True)


def odd(name, of):
    """Statuses that are not expected of an abuse: who is turned away has not harmed anybody."""
    other = {status: count for status, count in of["statuses"].items() if status not in ABUSES[name].expected}
    if not of["statuses"]:
        return [f"'{name}' was not tried"]
    return [f"'{name}' was answered {other}, expected {ABUSES[name].expected}"] if other else []


def late(name, of, limit):
    """What took too long beside an abuse."""
    wrong = [f"beside '{name}' {key} of the gaps is {1000 * of[key]:.1f} ms, {of[key] / of['quiet_p50']:.2f} times the "
             "median without" for key in ("p95", "p99") if of[key] > max(limit * of["quiet_p50"], LEAST)]
    if of["first_most"] > limit * of["quiet_first"] + 0.5:
        wrong.append(f"beside '{name}' a first text took {of['first_most']:.2f} s, {of['quiet_first']:.2f} without")
    return wrong


def main():
    options = arguments()
    results, bad = {}, []
    flags = ["-q", "--parallel", "4", "-c", str(options.context), "--api-key", "other"]
    drafts = any(flag.split("=")[0] == "--spec" for flag in options.flags)
    flags += ([] if drafts else ["--spec", "off"]) + options.flags
    aside = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), os.nice, (10,))
    with Server(options.program, *flags, key="own") as server, aside as abuser:
        abuser.submit(repeat, "honest", server.url, 0).result()  # both processes are warm
        for name in [name for name in ABUSES if not options.only or options.only in name]:
            for _ in range(2):
                of = results[name] = measure(name, server, abuser, options.seconds)
                show(name, of)
                bad += odd(name, of)
                slow = late(name, of, options.limit) if options.limit and name not in NOT_JUDGED else []
                if not slow:
                    break
            bad += slow
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    for what in bad:
        print(f"WRONG: {what}")
    return 1 if bad or not results else 0


if __name__ == "__main__":
    sys.exit(main())
