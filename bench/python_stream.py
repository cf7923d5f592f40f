#!/usr/bin/env python3
"""Tokens per second through LLM.stream and LLM.astream against those of `specextend generate`, alternately, each in a process of its own.
Printed for each: the shortest decode time, the median of the pairs with the range that holds the true median with a chance of 95 %, and what
the iterating thread takes of a core per token, which says how much it can slow the model down at most, however noisy the machine is.
Run it with the Python that has the package:
    PYTHONPATH=build/ci/python build/python/bin/python bench/python_stream.py build/ci/apps/specextend [PAIRS] [NAMES]
NAMES: stream,astream unless given."""
import json
import math
import subprocess
import sys

PROMPT, TOKENS = "The history of the lighthouse begins", 200
OPEN = """
import asyncio, json, resource, sys, time
from specextend import LLM
def used():
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return time.thread_time(), usage.ru_nvcsw + usage.ru_nivcsw
with LLM(spec=sys.argv[1], device="cpu", parallel=1) as llm:
    prompt, options = sys.argv[2], dict(max_tokens=int(sys.argv[3]), ignore_end=True)
"""
STREAM = OPEN + """
    stream = llm.stream(prompt, **options)
    text = next(stream)
    cpu, switches = used()
    text += "".join(stream)
    after, result = used(), stream.result
    print(json.dumps([result.timings["decode_ms"], text, after[0] - cpu, after[1] - switches]))
"""
ASTREAM = OPEN + """
    async def run():
        stream = llm.astream(prompt, **options)
        text = await anext(stream)
        cpu, switches = used()
        text += "".join([piece async for piece in stream])
        after, result = used(), await stream.result()
        print(json.dumps([result.timings["decode_ms"], text, after[0] - cpu, after[1] - switches]))
    asyncio.run(run())
"""
CODE = {"stream": STREAM, "astream": ASTREAM}


def program_run(program, spec):
    command = [program, "generate", "-p", PROMPT, "-n", str(TOKENS), "--ignore-eos", "--spec", spec, "--device", "cpu", "--json", "-q"]
    answer = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return answer["timings"]["predicted_ms"], answer["text"]


def python_run(code, spec):
    command = [sys.executable, "-c", code, spec, PROMPT, str(TOKENS)]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def median(values):
    values = sorted(values)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def range_of_median(values):
    """The narrowest pair of order statistics around the median that holds the true one with a chance of 95 %."""
    values, count = sorted(values), len(values)
    below, chance = 0, 0.5 ** count
    while below + 1 < count / 2 and 2 * (chance + math.comb(count, below + 1) * 0.5 ** count) <= 0.05:
        below += 1
        chance += math.comb(count, below) * 0.5 ** count
    return values[below], values[-1 - below]


def main():
    program, pairs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20
    names = sys.argv[3].split(",") if len(sys.argv) > 3 else list(CODE)
    for spec in ("off", "suffix"):
        times = {name: [] for name in ("program", *names)}
        cpu, switches = {name: [] for name in names}, {name: [] for name in names}
        for pair in range(pairs):
            order = ["program", *names]
            texts = set()
            for name in order if pair % 2 == 0 else reversed(order):
                if name == "program":
                    milliseconds, text = program_run(program, spec)
                else:
                    milliseconds, text, seconds, woken = python_run(CODE[name], spec)
                    cpu[name].append(1e6 * seconds / TOKENS)
                    switches[name].append(woken)
                times[name].append(milliseconds)
                texts.add(text)
            assert len(texts) == 1, texts
        print(f"{spec}: program {1000 * TOKENS / min(times['program']):.1f} tokens/s")
        for name in names:
            ratios = [plain / time for plain, time in zip(times["program"], times[name])]
            low, high = range_of_median(ratios)
            share = median(cpu[name]) * TOKENS / 1000 / min(times[name])
            print(f"{spec}: {name} {1000 * TOKENS / min(times[name]):.1f} tokens/s, {min(times['program']) / min(times[name]):.3f}x of the program's; "
                  f"{pairs} pairs: median {median(ratios):.3f}x ({low:.3f}x to {high:.3f}x); the iterating thread: "
                  f"{median(cpu[name]):.1f} µs of CPU time per token, {100 * share:.2f} % of a token's time, {median(switches[name]):.0f} switches")


if __name__ == "__main__":
    main()
