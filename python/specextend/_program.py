"""The console script `specextend`: the program of the package, in place of this process."""
import os
import sys


def program() -> str:
    """Path of the program: beside the module in a wheel, apps/specextend in a build tree."""
    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.path.join(here, "bin", "specextend"), os.path.join(here, "..", "..", "apps", "specextend")]
    for place in places:
        if os.access(place, os.X_OK):
            return os.path.normpath(place)
    raise FileNotFoundError(f"the program is neither {' nor '.join(places)}")


def main() -> None:
    try:
        path = program()
    except FileNotFoundError as error:
        sys.exit(f"specextend: {error}")
    os.execv(path, ["specextend", *sys.argv[1:]])
