#!/usr/bin/env python3
"""What every committed text file keeps to: no paths of somebody's machine, no tabs or trailing spaces, a newline at the
end, and scripts that start with #! are executable. Prints one line per offence. Code wider than 120 columns is only
counted: a table or a regular expression may be wider."""
import pathlib
import re
import subprocess
import sys

# Spelt so that this file does not match itself.
MACHINE_PATHS = re.compile(
    r"(?<![\w.$}])/(?:wor[k]|roo[t]|op[t]/peers|hom[e]/(?!x\b)\w+|tm[p]/(?:buil[d]|bash_job[s]))(?![\w.])")
CODE = {".h", ".cc", ".cu", ".cuh", ".inl", ".py", ".sh", ".cmake"}
MAX_COLUMNS = 120
TABS_ALLOWED = {"LICENSE"}
# Seeds and golden files are bytes as they are.
BYTES = re.compile(r"^(fuzz/corpus/|tests/(.*/)?(data|golden)/|tests/.*\.txt$|models/)")


def files(root):
    """Tracked files and those that would be: what git sees, or the whole tree outside a repository."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True)
    if done.returncode == 0:
        names = done.stdout.decode().split("\0")
    else:
        names = [p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()]
        names = [n for n in names if not n.startswith((".git/", "build/"))]
    return sorted(n for n in names if n and (root / n).is_file() and not BYTES.match(n))


def check_file(root, name):
    data = (root / name).read_bytes()
    if b"\0" in data or not data:
        return
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        yield 1, "not UTF-8"
        return
    if not text.endswith("\n"):
        yield text.count("\n") + 1, "no newline at the end of the file"
    if text.startswith("#!") and not (root / name).stat().st_mode & 0o100:
        yield 1, "starts with #! and is not executable"
    for number, line in enumerate(text.split("\n"), 1):
        if line.endswith(("\r", " ", "\t")):
            yield number, "trailing space or carriage return"
        if "\t" in line and name not in TABS_ALLOWED:
            yield number, "tab"
        if match := MACHINE_PATHS.search(line):
            yield number, f"path of one machine: {match[0]}"


def wide_lines(root, name):
    if pathlib.Path(name).suffix not in CODE:
        return 0
    return sum(len(line) > MAX_COLUMNS for line in (root / name).read_text(errors="replace").split("\n"))


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    names = files(root)
    found = [f"{name}:{line}: {problem}" for name in names for line, problem in check_file(root, name)]
    print("\n".join(found) if found else "text: clean")
    print(f"text: {sum(wide_lines(root, name) for name in names)} lines of code are wider than {MAX_COLUMNS} columns")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
