#!/usr/bin/env python3
"""Tokens per second through LLM.stream and LLM.astream against those of `specextend generate`, alternately, each in a process of its own;
the shortest decode time of each counts. Run it with the Python that has the package:
    PYTHONPATH=build/ci/python build/python/bin/python bench/python_stream.py build/ci/apps/specextend [RUNS]"""
import json
import subprocess
import sys

PROMPT, TOKENS = "The history of the lighthouse begins", 200
OPEN = """
import asyncio, json, sys
from specextend import LLM
with LLM(spec=sys.argv[1], device="cpu", parallel=1) as llm:
    prompt, options = sys.argv[2], dict(max_tokens=int(sys.argv[3]), ignore_end=True)
"""
STREAM = OPEN + """
    stream = llm.stream(prompt, **options)
    text = "".join(stream)
    print(json.dumps([stream.result.timings["decode_ms"], text]))
"""
ASTREAM = OPEN + """
    async def run():
        stream = llm.astream(prompt, **options)
        return "".join([piece async for piece in stream]), await stream.result()
    text, result = asyncio.run(run())
    print(json.dumps([result.timings["decode_ms"], text]))
"""


def program_run(program, spec):
    command = [program, "generate", "-p", PROMPT, "-n", str(TOKENS), "--ignore-eos", "--spec", spec, "--device", "cpu", "--json", "-q"]
    answer = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return answer["timings"]["predicted_ms"], answer["text"]


def python_run(code, spec):
    command = [sys.executable, "-c", code, spec, PROMPT, str(TOKENS)]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def main():
    program, runs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8
    for spec in ("off", "suffix"):
        times = {"program": [], "stream": [], "astream": []}
        for _ in range(runs):
            milliseconds, expected = program_run(program, spec)
            times["program"].append(milliseconds)
            for name, code in (("stream", STREAM), ("astream", ASTREAM)):
                milliseconds, text = python_run(code, spec)
                assert text == expected
                times[name].append(milliseconds)
        for name, all_times in times.items():
            ratios = sorted(plain / time for plain, time in zip(times["program"], all_times))
            best = min(times["program"]) / min(all_times)
            print(f"{spec}: {name} {1000 * TOKENS / min(all_times):.1f} tokens/s, {best:.3f}x of the program's; "
                  f"pairs: median {ratios[len(ratios) // 2]:.3f}x, worst {ratios[0]:.3f}x")


if __name__ == "__main__":
    main()
