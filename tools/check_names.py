#!/usr/bin/env python3
"""Files of a module have no name twice in their unnamed namespaces, nor one that a neighbour's alias beside such a namespace
has: the demo's build compiles them together (cmake/quick.cmake).

Usage: check_names.py COMPILE_COMMANDS    the file that CMake writes; nothing is compiled
"""
import collections
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TYPE = re.compile(r"(?:template\s*<.*?>\s*)?(?:struct|class|enum class|enum|union)\s+(\w+)")
ALIAS = re.compile(r"(?:using|namespace) (\w+)\s*=\s*(.*?);")
FUNCTION = re.compile(r"[\w:<>,&*\s\[\]]*?[\s&*](\w+)\((.*)", re.S)


def quick(name):
    """The list that cmake/quick.cmake keeps under a name."""
    text = (ROOT / "cmake" / "quick.cmake").read_text()
    return re.search(rf"set\({name}\s+(.*?)\)", text, re.S).group(1).split()


def declarations(text):
    """The pieces of text that begin in column one inside `namespace {`, up to where their bodies begin; outside of it aliases only."""
    inside = False
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if line.startswith("namespace {"):
            inside = True
        elif line.startswith("}  // namespace") and line.rstrip() == "}  // namespace":
            inside = False
        elif inside and line[:1].isalpha() or ALIAS.match(line):
            piece = line
            while not re.search(r"[;{]", piece) and at + 1 < len(lines):
                at += 1
                piece += " " + lines[at].strip()
            yield re.sub(r"//.*", "", piece)


def names(piece):
    """What a declaration names; functions with the types of their parameters, since overloads may stand side by side."""
    if piece.startswith(("using namespace", "static_assert", "extern", "friend")):
        return
    if m := ALIAS.match(piece):
        yield m.group(1), m.group(2)  # the same alias twice is no clash
    elif m := TYPE.match(piece):
        yield m.group(1), None
    elif "=" in piece.split("(")[0] or "(" not in piece:
        for m in re.finditer(r"\b([A-Za-z_]\w*)(?:\[[^\]]*\])?\s*(?:=[^=]|\{|;)", piece.split("{")[0] if "=" in piece else piece):
            yield m.group(1), None
    elif m := FUNCTION.match(piece):
        parameters = re.sub(r"\s*[{;].*$", "", m.group(2), flags=re.S)
        yield m.group(1) + "(" + re.sub(r"\b\w+(?=\s*[,)=])|\s+", "", parameters), None


def main():
    together, alone = quick("together"), [re.compile(f"/{one}$") for one in quick("alone")]
    files = collections.defaultdict(set)
    for command in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        path = pathlib.Path(command["file"]).resolve()
        target = re.search(r"CMakeFiles/(\w+)\.dir/", command.get("output", command["command"]))
        if target and target.group(1) in together and path.suffix == ".cc" and path.is_relative_to(ROOT) and path.is_file():
            kernel = re.search(r" -O3 | -DSX_HAS_", command["command"]) or re.search(r"_(neon|avx|amx)\w*$", path.stem)
            if not kernel and not any(one.search(str(path)) for one in alone):  # CMake compiles kernels alone
                files[target.group(1)].add(path)
    if not files:
        sys.exit(f"{sys.argv[1]}: no file of {', '.join(together)}")
    clashes = 0
    for target in sorted(files):
        seen = collections.defaultdict(dict)
        for path in sorted(files[target]):
            for piece in declarations(path.read_text()):
                for name, what in names(piece):
                    for other, same in seen[name].items():
                        if other != path and (what is None or what != same):
                            print(f"{path.relative_to(ROOT)}: '{name}' is also in the unnamed namespace of {other.relative_to(ROOT)}")
                            clashes += 1
                    seen[name][path] = what
    sys.exit(1 if clashes else 0)


if __name__ == "__main__":
    main()
