#!/usr/bin/env python3
"""Prints how one method did against plain decoding and against the best of the others, cell by cell, from `specextend eval`.

    bench/eval_cells.py RUN/results.jsonl... [--method auto] [--decode]
    bench/eval_cells.py RUN/results.jsonl... --interval

A cell is a category of prompts, their length, a temperature, an answer length and a batch size. Its speed-up is the median over its prompts of the time a
user waits (--decode: after the prompt is read) of plain decoding by that of the method, repetitions by their medians.

--interval: a table of all methods from pairs. Plain decoding and a method follow each other directly in each repetition, so each gives a ratio of its own; a cell has
the median of these and, in brackets, the order statistics between which the true median lies with 95 %.
"""
import argparse
import collections
import json
import math
import statistics


def runs_of(paths):
    """(which file, run)"""
    for number, path in enumerate(paths):
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                run = json.loads(line)
                if "eval" not in run:
                    yield number, run


def short(method):
    """The method without the file of its draft."""
    preset, _, settings = method.partition(":")
    kept = [setting for setting in settings.split(",") if setting and not setting.startswith("draft-model=")]
    return ":".join([preset] + ([",".join(kept)] if kept else []))


def speedups(paths, decode):
    """{cell: {method: median speed-up}}"""
    times = collections.defaultdict(list)
    for _, run in runs_of(paths):
        cell = (run["category"], run["length"], run["temperature"], run["max_tokens"], run["batch"])
        # "decode_ms" leaves out what the draft read of the prompt: it is part of the answer's time.
        ms = run["decode_ms"] + run["draft_prompt_ms"] if decode else run["whole_ms"]
        times[cell, run["prompt"], short(run["method"])].append(ms)
    ratios = collections.defaultdict(list)
    for (cell, prompt, method), taken in times.items():
        plain = times.get((cell, prompt, "off"))
        if plain and statistics.median(taken) > 0:
            ratios[cell, method].append(statistics.median(plain) / statistics.median(taken))
    cells = collections.defaultdict(dict)
    for (cell, method), values in ratios.items():
        cells[cell][method] = statistics.median(values)
    return cells


def pairs(paths, decode):
    """{cell: {method: [plain time by the method's, in the same repetition of the same prompt of the same file]}}"""
    times = {}
    for file, run in runs_of(paths):
        cell = (run["category"], run["length"], run["temperature"], run["max_tokens"], run["batch"])
        ms = run["decode_ms"] + run["draft_prompt_ms"] if decode else run["whole_ms"]
        times[cell, file, run["prompt"], run["repetition"], short(run["method"])] = ms
    cells = collections.defaultdict(lambda: collections.defaultdict(list))
    for (cell, file, prompt, repetition, method), ms in times.items():
        plain = times.get((cell, file, prompt, repetition, "off"))
        if plain and method != "off":
            cells[cell][method].append(plain / ms)
    return cells


def interval(values, sure=0.95):
    """The order statistics that have the median between them with this probability; all of them where there are too few."""
    ordered, n = sorted(values), len(values)
    outside, below = 0.0, 0
    while below < n // 2:
        outside += math.comb(n, below) / 2**n
        if 2 * outside > 1 - sure:
            break
        below += 1
    below = max(below - 1, 0)
    return ordered[below], ordered[n - 1 - below]


def print_intervals(paths, decode):
    cells = pairs(paths, decode)
    methods = sorted({method for of in cells.values() for method in of})
    print(f"| category | T | tokens | batch | pairs | {' | '.join(methods)} |\n| --- | ---: | ---: | ---: | ---: | {' | '.join('---:' for _ in methods)} |")
    for (category, length, temperature, answer, batch), of in sorted(cells.items()):
        shown = []
        for method in methods:
            low, high = interval(of[method]) if of[method] else (0, 0)
            shown.append(f"{statistics.median(of[method]):.3f} ({low:.3f} to {high:.3f})" if of[method] else "")
        print(f"| {category}{f' {length}' if length else ''} | {temperature:g} | {answer} | {batch} | {max(len(v) for v in of.values())} | {' | '.join(shown)} |")
    for method in methods:
        own = [statistics.median(of[method]) for of in cells.values() if of[method]]
        sure = sum(interval(of[method])[1] < 0.98 for of in cells.values() if of[method])
        print(f"{method}: {len(own)} cells, median {statistics.median(own):.3f}, worst {min(own):.3f}, {sum(r < 0.98 for r in own)} below 0.98, {sure} of them beyond doubt")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--interval", action="store_true")
    args = parser.parse_args()
    if args.interval:
        return print_intervals(args.files, args.decode)
    cells = {cell: of for cell, of in speedups(args.files, args.decode).items() if args.method in of}
    print(f"{'category':16} {'length':>6} {'T':>4} {'new':>4} {'batch':>5} {args.method:>7}  best of the others")
    for (category, length, temperature, answer, batch), of in sorted(cells.items()):
        others = {name: ratio for name, ratio in of.items() if name != args.method}
        best = max(others, key=others.get)
        print(f"{category:16} {length or '':>6} {temperature:4g} {answer:4} {batch:5} {of[args.method]:6.2f}x  {others[best]:5.2f}x {best}"
              f"{'  slower than plain' if of[args.method] < 0.98 else ''}"
              f"{'  behind the best' if of[args.method] < 0.95 * others[best] else ''}")
    own = sorted(of[args.method] for of in cells.values())
    if own:
        print(f"{len(own)} cells: median {statistics.median(own):.2f}x, worst {own[0]:.2f}x, "
              f"{sum(ratio < 0.98 for ratio in own)} below 0.98x, "
              f"{sum(of[args.method] < 0.95 * max(of.values()) for of in cells.values())} more than 5 % behind the best")


if __name__ == "__main__":
    main()
