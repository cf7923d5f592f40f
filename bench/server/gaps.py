#!/usr/bin/env python3
"""How long do the gaps of one key's stream become beside what another key does to the server?

    bench/server/gaps.py --program build/release/apps/specextend [--seconds 4] [--limit 3] [-- -m model.gguf ...]

Before each abuse the stream runs undisturbed; then two clients with another key repeat the abuse as fast as they are answered (that
of many connections holds them). Printed are milliseconds between two events of the stream. With --limit an abuse whose p95 is more than
so many times the undisturbed median is repeated once, and the exit status is 1 if it still is. Grammars and schemas are
different ones each time, so that none is found compiled. `honest` is no abuse: short requests that decode along.
"""
import argparse
import contextlib
import json
import socket
import sys
import threading
import time

from serving import Remote, Server

SPACES = json.dumps({"prompt": " " * (15 << 20)}).encode()
DEEP = ('{"prompt": ' + "[" * 100000).encode()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--seconds", type=float, default=4, help="of each abuse, and half of it before (%(default)s)")
    parser.add_argument("--limit", type=float, help="p95 beside an abuse over the median without, at most")
    parser.add_argument("--only", help="abuses whose names contain this")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--json", metavar="FILE", help="the figures, too")
    parser.add_argument("flags", nargs="*", help="of the server")
    return parser.parse_args()


def alternatives(number, rules=1890):
    """As many rules that begin alike: the compilation is long, and every token has many readings."""
    lines = [f'r{i} ::= "a" [a-z ]' for i in range(rules)]
    return f'root ::= "{number}"? any{{1,100000}}\nany ::= ' + " | ".join(f"r{i}" for i in range(rules)) + "\n" + "\n".join(lines)


def repeats(number):
    return f'root ::= " {number}" a3 | " "? [A-Y] [^\\n]{{0,60}}\na1 ::= [a-z ,.]{{1,1000}}\na2 ::= a1{{1,1000}}\na3 ::= a2{{1,1000}}'


def properties(number):
    return {"type": "object", "properties": {f"name {number} {i}": {"type": "string", "pattern": "^[a-z]{1,60}$"} for i in range(1500)}}


def names(number):
    return {"enum": [f"{i} of {number}, and some text" for i in range(1900)]}


def completion(**fields):
    """A request with fields that may depend on its number."""
    def ask(server, number):
        given = {name: value(number) if callable(value) else value for name, value in fields.items()}
        return server.request("POST", "/completion", {"prompt": "Hi", "n_predict": 5, "temperature": 0, **given})[0]
    return ask


def posted(path, body):
    return lambda server, number: server.request("POST", path, body)[0]


def burst(server, number):
    """Twenty requests at a time."""
    codes = []
    ask = completion(n_predict=16)
    threads = [threading.Thread(target=lambda: codes.append(ask(server, number))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(codes)


def paths(server, number):
    for path in ("/../v1/models", "/%2e%2e/etc/passwd", "/slots/-1", "/v1%2fmodels%00"):
        code = server.request("GET", path)[0]
    return code


def connections(server, number, seconds):
    """Idle ones, those that send a byte of a head now and then, and half-closed ones."""
    with contextlib.ExitStack() as stack:
        slow = []
        for i in range(600):
            one = stack.enter_context(socket.create_connection((server.host, server.port)))
            if i % 3:
                one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
                (slow.append(one) if i % 3 == 1 else one.shutdown(socket.SHUT_WR))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for one in slow:
                with contextlib.suppress(OSError):
                    one.send(b"a")
            time.sleep(0.5)
    return 0


ABUSES = {
    "honest": completion(), "burst of a key": burst,
    "grammar, cached": completion(grammar=alternatives(0)), "grammar, compiled": completion(grammar=alternatives),
    "grammar, nested repeats": completion(grammar=repeats),
    "grammar, slow masks": completion(grammar=lambda n: 'root ::= "%d"? ([a-z ]{1,63} "."?){1,127}' % n, n_predict=30),
    "schema, properties": completion(json_schema=properties), "schema, names": completion(json_schema=names),
    "16 MiB of spaces": posted("/v1/completions", SPACES), "100,000 levels of JSON": posted("/v1/completions", DEEP),
    "another key's prompt": completion(prompt="Once upon a time", n_predict=1), "paths": paths, "600 connections": connections,
}


class Watched:
    """The gaps of a stream."""

    def __init__(self, server):
        self.gaps, self.ending = [], threading.Event()
        self.server, self.begun = server, threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def watch(self):
        last = None
        body = {"prompt": "Once upon a time", "max_tokens": -1, "ignore_eos": True, "temperature": 0}
        for event in self.server.stream("/v1/completions", body):
            if last:
                self.gaps.append(event.time - last)
                self.begun.set()
            last = event.time
            if self.ending.is_set():
                return

    def __enter__(self):
        self.thread.start()
        self.begun.wait(60)
        self.gaps.clear()
        return self

    def __exit__(self, *_):
        self.ending.set()
        self.thread.join()


def repeat(abuse, other, seconds):
    end, statuses = time.monotonic() + seconds, {}

    def client(k):
        number = 100000 * k
        while time.monotonic() < end:
            number += 1
            status = connections(other, number, seconds) if abuse is connections else abuse(other, number)
            statuses[status] = statuses.get(status, 0) + 1

    threads = [threading.Thread(target=client, args=(k,)) for k in range(1 if abuse is connections else 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def measure(abuse, server, other, seconds):
    with Watched(server) as quiet:
        time.sleep(seconds / 2)
    with Watched(server) as watched:
        statuses = repeat(abuse, other, seconds)
    server.wait_until_idle()
    before, gaps = sorted(quiet.gaps), sorted(watched.gaps)
    median = before[len(before) // 2]
    figures = {"quiet_p50": median, "quiet_p95": before[len(before) * 95 // 100], "p50": gaps[len(gaps) // 2],
               "p95": gaps[len(gaps) * 95 // 100], "p99": gaps[len(gaps) * 99 // 100], "most": gaps[-1]}
    return {name: 1000 * value for name, value in figures.items()} | {"gaps": len(gaps), "ratio": figures["p95"] / median, "statuses": statuses}


def main():
    options = arguments()
    results, bad = {}, []
    with Server(options.program, "-q", "--parallel", "4", "-c", str(options.context), "--spec", "off", *options.flags, "--api-key", "other",
                key="own") as server:
        other = Remote(server.url, key="other")
        for name, abuse in ABUSES.items():
            if options.only and options.only not in name:
                continue
            for _ in range(2):
                got = results[name] = measure(abuse, server, other, options.seconds)
                print(f"{name:24} quiet {got['quiet_p50']:6.1f} ms (p95 {got['quiet_p95']:6.1f}); beside it {got['p50']:6.1f}, p95 {got['p95']:6.1f}, "
                      f"p99 {got['p99']:6.1f}, most {got['most']:6.1f}: {got['ratio']:.2f}x; {got['gaps']} gaps, {got['statuses']}", flush=True)
                if not options.limit or got["ratio"] <= options.limit:
                    break
            else:
                bad.append(name)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    for name in bad:
        print(f"WRONG: beside '{name}' p95 is more than {options.limit} times the median without")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
