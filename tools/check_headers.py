#!/usr/bin/env python3
"""Every header under src and include compiles alone (-fsyntax-only, in parallel).

One that a source file of a strict build includes before anything else has been compiled alone by that build, and is left out.
A header that passed is not compiled again until it, a header of ours that it includes, the compiler or the flags change:
the build folder keeps a stamp of all of these per header. A header of an instruction set that this machine's plain flags do
not offer is compiled with the flags of a source file beside it; one that asks for a macro (#error "define X ...) gets it.
"""
import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEARCH = [ROOT / "src", ROOT / "include"]
FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wshadow", "-Werror",
         "-x", "c++"]
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)


@functools.lru_cache(maxsize=None)
def closure(path):
    """The file and all of our own files it includes, directly or not."""
    seen, open_files = {path}, [path]
    while open_files:
        for target in INCLUDE.findall(open_files.pop().read_text(errors="replace")):
            for folder in SEARCH:
                file = folder / target
                if file.is_file() and file not in seen:
                    seen.add(file)
                    open_files.append(file)
    return sorted(seen)


def stamp_of(path, identity):
    digest = hashlib.sha256(identity.encode())
    for file in closure(path):
        digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def machine_flags(build, header):
    """The -m flags of the source files in the header's folder, one list per distinct set."""
    found = []
    try:
        commands = json.loads((build / "compile_commands.json").read_text())
    except (OSError, ValueError):
        return found
    for entry in commands:
        if pathlib.Path(entry["file"]).parent == header.parent:
            flags = [f for f in shlex.split(entry["command"]) if f.startswith("-m")]
            if flags and flags not in found:
                found.append(flags)
    return found


def compile_alone(compiler, build, header):
    """None, or what the compiler said."""
    source = "".join(f"#define {name} alone\n" for name in re.findall(r'#error "define (\w+)', header.read_text()))
    source += f'#include "{header}"\n'
    includes = [f"-I{folder}" for folder in SEARCH]
    first = None
    for extra in [[], *machine_flags(build, header)]:
        done = subprocess.run([compiler, *FLAGS, *extra, *includes, "-"], input=source, capture_output=True, text=True)
        if done.returncode == 0:
            return None
        first = first or done.stderr
    return first


def proven(build):
    """The headers, as they are included, that come first in a source file of a strict build."""
    try:
        commands = json.loads((build / "compile_commands.json").read_text())
    except (OSError, ValueError):
        return set()
    strict = [pathlib.Path(e["file"]) for e in commands if {"-Wall", "-Wextra", "-Wshadow", "-Werror"} <= set(shlex.split(e["command"]))]
    firsts = (INCLUDE.search(file.read_text(errors="replace")) for file in strict if ROOT / "src" in file.parents)
    return {first[1] for first in firsts if first}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--build", type=pathlib.Path, required=True, help="where the stamps are kept")
    options = parser.parse_args()
    version = subprocess.run([options.compiler, "--version"], capture_output=True, text=True).stdout
    identity = version + " ".join(FLAGS)
    stamps_file = options.build / "header_stamps.json"
    try:
        stamps = json.loads(stamps_file.read_text())
    except (OSError, ValueError):
        stamps = {}
    built = proven(options.build)
    every = [(folder, h) for folder in SEARCH for h in sorted(folder.rglob("*.h"))]
    headers = [h for folder, h in every if h.relative_to(folder).as_posix() not in built]
    wanted = {h: stamp_of(h, identity) for h in headers}
    due = [h for h in headers if stamps.get(h.relative_to(ROOT).as_posix()) != wanted[h]]
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda h: compile_alone(options.compiler, options.build, h), due)
        for header, said in zip(due, results):
            name = header.relative_to(ROOT).as_posix()
            if said is None:
                stamps[name] = wanted[header]
            else:
                failures += 1
                print(f"{name} does not compile alone:\n{said}")
    temporary = stamps_file.with_suffix(".tmp")
    temporary.write_text(json.dumps(stamps, indent=0))
    temporary.replace(stamps_file)
    print(f"headers: {len(every)} in all, {len(every) - len(headers)} compiled by the build, {len(due)} now, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
