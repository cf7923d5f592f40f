#!/usr/bin/env python3
"""The rules of the source tree that a compiler does not check (docs: CONTRIBUTING.md).

Includes go strictly downwards through the modules of src/; only backend/registry names the cpu and cuda folders from
outside; programs see only the public headers; conditional compilation stays where machines differ; files are at most
500 lines (600 in tests and benchmarks), headers have #pragma once, and every file opens with a comment. Prints one line per offence and exits 1.
"""
import argparse
import pathlib
import re
import sys
import tempfile

MODULES = ["base", "comm", "tensor", "kv", "backend", "formats", "model", "text", "speculative", "engine", "capi"]
PUBLIC_IN = {"error.h": 0, "give_way.h": 0, "no_memory.h": 0, "suggest.h": 0}  # public headers usable from this module on; the others only from the engine
C_STANDARD = {"stddef.h", "stdint.h"}  # of the C interface
SUFFIXES = {".h", ".c", ".cc", ".cu", ".cuh", ".inl", ".inc"}
FOLDERS = ["include", "src", "apps", "python", "tests", "bench", "fuzz", "examples"]
MAX_LINES = 500
MAX_TEST_LINES = 600  # of tests and benchmarks: their tables of cases are long when formatted
BENCH_IN_APPS = {"bench/peaks/peaks.h"}  # headers of bench/ that the program may see: `specextend bench` prints the peaks
CONDITIONAL_ALLOWED = [
    r"src/backend/registry\.cc", r"src/backend/cpu/.*", r"src/backend/cuda/.*", r"src/base/.*", r"src/tensor/half\.h", r"include/specextend/c\.h",
    r"tests/.*", r"bench/.*", r"fuzz/.*",
]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
CONDITIONAL = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b", re.M)
REGISTRY = ("backend/registry.h", "backend/registry.cc")
KERNEL_FOLDERS = ("backend/cpu/", "backend/cuda/")


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def module_of(path):
    """Index of the module a path below src/ belongs to, or None."""
    head = path.split("/", 1)[0]
    return MODULES.index(head) if head in MODULES else None


def check_src_include(name, target, quoted):
    """Why src/`name` may not include `target`, or None."""
    here = module_of(name)
    if target.startswith("specextend/"):
        lowest = PUBLIC_IN.get(target.split("/", 1)[1], MODULES.index("engine"))
        return None if here >= lowest else f"module {MODULES[here]} may not see the public header {target}"
    if not quoted:
        return None
    there = module_of(target)
    if there is None:
        return f'"{target}" is not written from src/ on ("module/file.h")'
    if there > here:
        return f"module {MODULES[here]} is below module {MODULES[there]} of {target}"
    for folder in KERNEL_FOLDERS:
        if target.startswith(folder) and not name.startswith(folder) and name not in REGISTRY:
            return f"only the registry may name {folder} ({target})"
    return None


def check_app_include(name, target, quoted, root):
    if not quoted:
        return None
    if target in BENCH_IN_APPS:
        return None
    own = (root / "apps" / target).is_file() or (root / "apps" / name).parent.joinpath(target).is_file()
    return None if own else f"a program includes only <specextend/...> and its own headers, not {target}"


def check_includes(root, path, text):
    for match in INCLUDE.finditer(text):
        quoted, target = match[1] == '"', match[2]
        top, _, name = path.partition("/")
        problem = None
        if top == "src":
            if module_of(name) is None:
                problem = f"src/{name.split('/')[0]} is not a module"
            else:
                problem = check_src_include(name, target, quoted)
        elif top in ("apps", "examples"):
            if top == "apps" or target.startswith("specextend/") or quoted:
                problem = check_app_include(name, target, quoted, root)
            if not quoted and module_of(target) is not None and target.endswith(".h") and "/" in target:
                problem = f"{target} is not public"
        elif top == "include" and target not in C_STANDARD and (quoted or (target.endswith(".h") and not target.startswith("specextend/"))):
            problem = f"a public header includes only <specextend/...> and the standard library, not {target}"
        if problem:
            yield line_of(text, match.start()), problem


def opens_with_comment(text):
    return text.lstrip("\ufeff\n").startswith(("//", "/*"))


def check_file(root, path, text):
    yield from check_includes(root, path, text)
    lines = text.count("\n")
    most = MAX_TEST_LINES if path.startswith(("tests/", "bench/")) else MAX_LINES
    if lines > most:
        yield 1, f"{lines} lines, at most {most} allowed"
    if not any(re.fullmatch(pattern, path) for pattern in CONDITIONAL_ALLOWED):
        for match in CONDITIONAL.finditer(text):
            yield line_of(text, match.start()), f"#{match[1]} outside the files where machines may differ"
    if path.endswith((".h", ".cuh")) and not re.search(r"^#pragma once$", text, re.M):
        yield 1, "header without #pragma once"
    if not opens_with_comment(text):
        header = (root / path).with_suffix(".h")
        covered = path.endswith((".cc", ".cu")) and header.is_file() and opens_with_comment(header.read_text())
        if not covered:
            yield 1, "does not open with a comment that says what it is"


def check(root):
    """All offences under `root` as 'path:line: what'."""
    found = []
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in SUFFIXES and file.is_file():
                path = file.relative_to(root).as_posix()
                text = file.read_text(encoding="utf-8", errors="replace")
                found += [f"{path}:{line}: {problem}" for line, problem in check_file(root, path, text)]
    return found


def self_test():
    """Each rule catches what it is for, and leaves a clean tree alone."""
    c = "// Something.\n"
    cases = [
        ("src/base/a.h", c + "#pragma once\n#include <vector>\n#include <specextend/error.h>\n", None),
        ("src/kv/a.cc", c + '#include "tensor/tensor.h"\n', None),
        ("src/kv/a.cc", c + '#include "formats/model_config.h"\n', "is below module formats"),
        ("src/kv/a.cc", c + '#include "book.h"\n', "not written from src/"),
        ("src/base/a.cc", c + "#include <specextend/specextend.h>\n", "may not see the public header"),
        ("src/engine/a.cc", c + "#include <specextend/specextend.h>\n", None),
        ("src/backend/registry.cc", c + '#include "backend/cpu/isa.h"\n#ifdef X\n#endif\n', None),
        ("src/model/a.cc", c + '#include "backend/cpu/isa.h"\n', "only the registry"),
        ("src/backend/cpu/a.cc", c + '#include "backend/cpu/isa.h"\n#if 1\n#endif\n', None),
        ("src/text/a.cc", c + "#ifdef __linux__\n#endif\n", "outside the files where machines may differ"),
        ("src/other/a.cc", c + "#include <vector>\n", "not a module"),
        ("apps/cli/a.cc", c + '#include <specextend/specextend.h>\n#include <CLI/CLI.hpp>\n', None),
        ("apps/cli/a.cc", c + '#include "base/error.h"\n', "its own headers"),
        ("examples/x/main.cc", c + '#include <base/error.h>\n', "not public"),
        ("include/specextend/a.h", c + "#pragma once\n#include <fmt/format.h>\n", "a public header includes only"),
        ("src/base/a.h", c, "without #pragma once"),
        ("src/base/a.cc", "#include <vector>\n", "does not open with a comment"),
        ("tests/a.cc", c + '#include "backend/cpu/isa.h"\n#if 1\n#endif\n', None),
        ("src/base/a.cc", c + "\n" * 500, "501 lines"),
        ("tests/a.cc", c + "\n" * 599, None),
        ("tests/a.cc", c + "\n" * 600, "601 lines"),
    ]
    failed = 0
    for path, text, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / path
            file.parent.mkdir(parents=True)
            file.write_text(text)
            found = check(pathlib.Path(folder))
        good = not found if expected is None else len(found) == 1 and expected in found[0]
        if not good:
            failed += 1
            print(f"self-test: {path} {text!r}: expected {expected!r}, found {found}")
    print(f"self-test: {len(cases) - failed} of {len(cases)} rules hold")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--self-test", action="store_true")
    if parser.parse_args().self_test:
        return self_test()
    found = check(pathlib.Path(__file__).resolve().parent.parent)
    print("\n".join(found) if found else "layers: clean")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
