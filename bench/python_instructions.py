#!/usr/bin/env python3
"""What LLM.stream costs beside the model, in instructions per token, under valgrind's callgrind: no load of the machine changes these.
The iterating thread's, and the engine thread's less those of `specextend generate` for the same tokens, with one thread for the model.
    PYTHONPATH=build/ci/python build/python/bin/python bench/python_instructions.py build/ci/apps/specextend MODEL [TOKENS]
MODEL: a small one (build/ci/tests/apps/make_tiny_model FILE), since valgrind is some fifty times slower than the machine."""
import glob
import os
import re
import subprocess
import sys
import tempfile

PROMPT = "A fox, a dog"
STREAM = """
import sys
from specextend import LLM
with LLM(sys.argv[1], spec="off", device="cpu", parallel=1, threads=1) as llm:
    count = sum(len(piece.tokens) for piece in llm.stream(sys.argv[2], max_tokens=int(sys.argv[3]), ignore_end=True))
assert count == int(sys.argv[3]), count
"""


def instructions(command):
    """Of each thread, the first one first."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["valgrind", "-q", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={folder}/out", *command],
                       env={**os.environ, "SPECEXTEND_ISA": "avx2" if os.uname().machine == "x86_64" else "neon-dot", "SPECEXTEND_CACHE": "off"},
                       capture_output=True, check=True)
        found = []
        for name in sorted(glob.glob(folder + "/out-*")):
            with open(name, encoding="utf-8", errors="replace") as file:
                found.append(int(re.search(r"^totals: (\d+)", file.read(), re.M).group(1)))
        return found


def main():
    program, model, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 500

    def per_token(command):
        few, many = instructions(command(100)), instructions(command(100 + tokens))
        return [(after - before) / tokens for before, after in zip(few, many)]
    plain = per_token(lambda n: [program, "generate", "-m", model, "-p", PROMPT, "-n", str(n), "--ignore-eos", "--spec", "off", "--device", "cpu",
                                 "-t", "1", "-q"])
    iterating, engine = per_token(lambda n: [sys.executable, "-c", STREAM, model, PROMPT, str(n)])
    print(f"per token: program {plain[0]:.0f} instructions; stream: the engine's thread {engine:.0f}, {engine - plain[0]:+.0f}, and the iterating "
          f"thread {iterating:.0f}; together {engine + iterating - plain[0]:+.0f}")


if __name__ == "__main__":
    main()
