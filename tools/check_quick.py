#!/usr/bin/env python3
"""The files that the demo's build compiles together (cmake/quick.cmake) compile together: each batch goes through the compiler's front end,
without code. tools/check_names.py says sooner, and by name, which files clash; this one also sees what it cannot read: macros, overloads,
names of headers.

Usage: check_quick.py FOLDER [REGEX]    FOLDER: for a configuration of preset demo; REGEX: only the batches whose object has this in its path
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(command, folder):
    """Output of a command, or None if it was successful."""
    done = subprocess.run(command, shell=isinstance(command, str), cwd=folder, capture_output=True, text=True)
    return None if done.returncode == 0 else done.stdout + done.stderr


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    only = re.compile(sys.argv[2] if len(sys.argv) > 2 else "")
    os.environ["CCACHE_DISABLE"] = "1"  # it keeps objects, and none are made
    if failed := run(["cmake", "--preset", "demo", "-S", str(ROOT), "-B", str(folder)], ROOT):
        sys.exit(failed)
    commands = subprocess.run(["ninja", "-C", str(folder), "-t", "commands", "specextend"], capture_output=True, text=True, check=True).stdout.splitlines()
    batches = {}
    for command in commands:
        made = re.search(r" -o (\S+) -c ", command)
        if command.startswith("cd ") or made and made.group(1).endswith(".gch"):  # what writes sources, and the headers
            if failed := run(command, folder):
                sys.exit(failed)
        elif made and "/Unity/" in made.group(1) and only.search(made.group(1)):
            batches[made.group(1)] = command.replace(" -c ", " -fsyntax-only -c ")
    if not batches:
        sys.exit("no files are compiled together")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = dict(zip(batches, pool.map(lambda command: run(command, folder), batches.values())))
    for name, output in results.items():
        if output:
            print(f"{name}:\n{output}")
    print(f"{len(batches)} batches of files that the demo's build compiles together")
    sys.exit(any(results.values()))


if __name__ == "__main__":
    main()
