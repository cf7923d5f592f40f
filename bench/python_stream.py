#!/usr/bin/env python3
"""Tokens per second through LLM.stream against those of `specextend generate`, alternately, each in a process of its own; the shortest
decode time of each counts. Run it with the Python that has the package:
    PYTHONPATH=build/ci/python build/python/bin/python bench/python_stream.py build/ci/apps/specextend [RUNS]"""
import json
import subprocess
import sys

PROMPT, TOKENS = "The history of the lighthouse begins", 200
STREAM = """
import json, sys, time
from specextend import LLM
with LLM(spec=sys.argv[1], device="cpu", parallel=1) as llm:
    stream = llm.stream(sys.argv[2], max_tokens=int(sys.argv[3]), ignore_end=True)
    text = "".join(stream)
    print(json.dumps([stream.result.timings["decode_ms"], text]))
"""


def main():
    program, runs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8
    for spec in ("off", "suffix"):
        best = {"program": 1e9, "stream": 1e9}
        for _ in range(runs):
            command = [program, "generate", "-p", PROMPT, "-n", str(TOKENS), "--ignore-eos", "--spec", spec, "--device", "cpu"]
            answer = json.loads(subprocess.run([*command, "--json", "-q"], capture_output=True, check=True).stdout)
            best["program"] = min(best["program"], answer["timings"]["predicted_ms"])
            command = [sys.executable, "-c", STREAM, spec, PROMPT, str(TOKENS)]
            milliseconds, text = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
            assert text == answer["text"]
            best["stream"] = min(best["stream"], milliseconds)
        rates = {name: 1000 * TOKENS / time for name, time in best.items()}
        print(f"{spec}: program {rates['program']:.1f}, stream {rates['stream']:.1f} tokens/s, {rates['stream'] / rates['program']:.3f}x")


if __name__ == "__main__":
    main()
