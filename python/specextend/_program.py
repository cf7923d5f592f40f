"""The console script `specextend`: the program of the package, in place of this process."""
import os
import sys


def main() -> None:
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "specextend")
    if not os.access(program, os.X_OK):
        sys.exit(f"specextend: {program} is not there; this is a build tree, whose program is apps/specextend")
    os.execv(program, ["specextend", *sys.argv[1:]])
